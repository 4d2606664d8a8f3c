"""torchvision's ResNet with a free width and the paper's three stems.

A module of its own because torchvision imports PyTorch's compiler, which takes seconds: who only asks for names, for
help or for a part without a backbone need not wait for it.
"""

from __future__ import annotations

from torch import nn
from torchvision.models import resnet


class SlimResNet(resnet.ResNet):
    """torchvision's ResNet, its ``block`` by name: a width of 64 is the ordinary one, others are for small machines."""

    def __init__(self, block: str, layers: list[int], width: int = 64) -> None:
        kind: type[resnet.BasicBlock] | type[resnet.Bottleneck] = getattr(resnet, block)
        super().__init__(kind, layers)
        if width != 64:
            self.inplanes = width
            self.conv1 = nn.Conv2d(3, width, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.layer1 = self._make_layer(kind, width, layers[0])
            self.layer2 = self._make_layer(kind, 2 * width, layers[1], stride=2)
            self.layer3 = self._make_layer(kind, 4 * width, layers[2], stride=2)
            self.layer4 = self._make_layer(kind, 8 * width, layers[3], stride=2)
        self.fc = nn.Identity()
        self.features_dim = 8 * width * kind.expansion

    def set_stem(self, stem: str) -> None:
        """``small``: 3x3 stride 1, no max-pool. ``medium``: 3x3 stride 1, max-pool kept. ``imagenet``: 7x7 stride 2."""
        if stem == "imagenet":
            return
        self.conv1 = nn.Conv2d(3, self.conv1.out_channels, kernel_size=3, stride=1, padding=1, bias=False)
        if stem == "small":
            self.maxpool = nn.Identity()

    def reset_convolutions(self) -> None:
        """torchvision's own initialisation, for the layers that replaced its."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
