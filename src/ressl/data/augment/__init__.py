"""Augmentations of a batch as pure functions with explicit per-sample parameters.

Images go in as B x 3 x H x W, uint8 or float in [0, 1], and come out as float32 in [0, 1]. Nothing here draws a random
number: the caller passes factors, boxes and masks, one per sample (``ressl.data.views`` draws them). The same code runs
on CPU and GPU, without a host-device copy or a shape that depends on the data, so it compiles into one graph and can be
captured in a CUDA graph. Each function equals its torchvision twin for the same parameters.
"""

from ressl.data.augment.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    color_jitter,
    grayscale,
    solarize,
)
from ressl.data.augment.filters import gaussian_blur
from ressl.data.augment.geometry import (
    BOX_COLUMNS,
    crop_boxes,
    crop_resize,
    crop_window,
    flip,
    full_boxes,
    pad_crop,
    resize,
    resize_center_crop,
    to_float,
)
from ressl.data.augment.rand import OPERATIONS, rand_augment

__all__ = [
    "BOX_COLUMNS",
    "OPERATIONS",
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "color_jitter",
    "crop_boxes",
    "crop_resize",
    "crop_window",
    "flip",
    "full_boxes",
    "gaussian_blur",
    "grayscale",
    "pad_crop",
    "rand_augment",
    "resize",
    "resize_center_crop",
    "solarize",
    "to_float",
]
