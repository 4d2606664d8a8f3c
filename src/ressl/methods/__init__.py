"""Methods, one readable file each. ``METHODS`` is the whole list: nothing registers itself."""

from ressl.methods.base import Carry, Method, Output
from ressl.methods.ressl import ReSSL

METHODS: dict[str, type[Method]] = {
    "ressl": ReSSL,
}

__all__ = ["METHODS", "Carry", "Method", "Output", "ReSSL"]
