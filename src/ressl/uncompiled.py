"""Functions that the compiler calls as they are, instead of looking into them."""

import torch

# As ``torch.compiler.disable``, which imports the compiler, and takes seconds, wherever a function is marked by it.
# PyTorch marks its own functions like this: the compiler is imported when one is first called.
uncompiled = getattr(torch, "_disable_dynamo", torch.compiler.disable)
