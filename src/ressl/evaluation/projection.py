"""Features on a plane: t-SNE (scikit-learn's) of unit features after a PCA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def tsne(features: Tensor, seed: int = 0, perplexity: float = 30.0) -> Tensor:
    """N x 2 float32 on the CPU, from N x D; distances are those of unit vectors, so they follow the cosine."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    z = F.normalize(features.float(), dim=1).cpu().numpy()
    parts = min(50, *z.shape)
    z = PCA(parts, svd_solver="full" if len(z) < 5000 else "covariance_eigh", random_state=seed).fit_transform(z)
    made = TSNE(2, perplexity=min(perplexity, (len(z) - 1) / 3), init="pca", random_state=seed).fit_transform(z)
    return torch.from_numpy(made).float()
