"""The paper's tables as grids of recipes, with its numbers (top-1 of the linear evaluation; mAP of the SVMs)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

SETS = ("cifar10", "cifar100", "stl10", "tiny-imagenet")
TITLES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "stl10": "STL-10", "tiny-imagenet": "Tiny ImageNet"}


@dataclass(frozen=True)
class Cell:
    """One number of the paper: where it stands, and what to change in which recipe to get it."""

    row: str
    column: str
    recipe: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    paper: float | None = None
    on: str = ""  # other data: the number is a low-shot SVM there, not the linear evaluation at home
    shots: int | None = None  # of that SVM, per class; None: all labels


@dataclass(frozen=True)
class Elsewhere:
    """A number of the paper that stands in a table and is not made by it: how it is made instead, or why it is not."""

    row: str
    column: str
    paper: float
    how: str


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    cells: tuple[Cell, ...]
    quick_epochs: int = 20  # of training; the linear evaluation has QUICK_LINEAR
    elsewhere: tuple[Elsewhere, ...] = ()

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


def _grid(
    rows: Mapping[str, tuple[Mapping[str, Any], tuple[float | None, ...]]], sets: tuple[str, ...] = SETS
) -> Iterator[Cell]:
    """Rows of changes by columns of data sets."""
    for row, (changes, numbers) in rows.items():
        for data, number in zip(sets, numbers, strict=True):
            yield Cell(row, TITLES[data], data, changes, number)


TABLE1 = Table(
    "table1",
    "Table 1: methods on small and medium data sets",
    tuple(
        _grid(
            {
                "supervised": ({"method": "supervised"}, (94.22, 74.66, 82.55, 59.26)),
                "SimCLR": ({"method": "simclr"}, (84.92, 59.28, 85.48, 44.38)),
                "BYOL": ({"method": "byol"}, (85.82, 57.75, 87.45, 42.70)),
                "SimSiam": ({"method": "simsiam"}, (88.51, 60.00, 87.47, 37.04)),
                "MoCo v2": ({"method": "moco-v2"}, (86.18, 59.51, 85.88, 43.36)),
                "ReSSL": ({}, (90.20, 63.79, 88.25, 46.60)),
            }
        )
    ),
)

_TAU_T = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07)
_TAUS = {
    ("cifar10", 0.1): (89.35, 89.74, 90.09, 90.04, 90.20, 90.18, 88.67),
    ("cifar10", 0.2): (89.52, 89.67, 89.24, 89.50, 89.22, 89.40, 89.50),
    ("cifar100", 0.1): (62.34, 62.79, 62.71, 63.79, 63.46, 63.20, 61.31),
    ("cifar100", 0.2): (60.37, 60.05, 60.24, 60.09, 59.09, 59.12, 59.76),
    ("stl10", 0.1): (86.65, 86.96, 87.16, 87.32, 88.25, 87.83, 87.08),
    ("stl10", 0.2): (85.17, 86.12, 85.01, 85.67, 85.21, 85.51, 85.28),
    ("tiny-imagenet", 0.1): (45.20, 45.40, 46.30, 46.60, 45.08, 45.24, 44.18),
    ("tiny-imagenet", 0.2): (43.28, 42.98, 43.58, 42.12, 42.70, 42.76, 42.60),
}

TABLE2 = Table(
    "table2",
    "Table 2: temperatures of teacher and student",
    tuple(
        Cell(
            f"{TITLES[data]}, tau_s {tau_s}",
            f"tau_t {tau_t}",
            data,
            {"student_temperature": tau_s, "teacher_temperature": tau_t},
            number,
        )
        for (data, tau_s), numbers in _TAUS.items()
        for tau_t, number in zip(_TAU_T, numbers, strict=True)
    ),
)

TEMPERATURE = Table(
    "table-temperature",
    "Table 10: the teacher's temperature near the student's (tau_s 0.1), where the model collapses",
    tuple(
        _grid(
            {
                f"tau_t {tau}": ({"student_temperature": 0.1, "teacher_temperature": tau}, numbers)
                for tau, numbers in {
                    0.08: (10.00, 1.00, 83.05, 39.38),
                    0.09: (10.00, 1.00, 10.00, 0.50),
                    0.10: (10.00, 1.00, 10.00, 0.50),
                }.items()
            }
        )
    ),
)

TABLE3 = Table(
    "table3",
    "Table 3: the teacher's augmentation",
    tuple(
        _grid(
            {
                "contrastive teacher": ({"views": ["strong", "strong"]}, (86.17, 57.60, 84.71, 40.38)),
                "weak teacher": ({}, (90.20, 63.79, 88.25, 46.60)),
            }
        )
    ),
)

_QUEUES = {
    "cifar10": dict(zip((256, 512, 1024, 4096, 8192, 16384), (89.37, 89.53, 89.83, 90.04, 90.15, 90.35), strict=True)),
    "cifar100": dict(zip((256, 512, 1024, 4096, 8192, 16384), (61.17, 62.47, 63.20, 63.79, 63.84, 64.06), strict=True)),
    "stl10": dict(zip((256, 1024, 4096, 8192, 16384, 32768), (85.88, 87.23, 87.72, 87.42, 87.32, 87.47), strict=True)),
    "tiny-imagenet": dict(
        zip((256, 1024, 4096, 8192, 16384, 32768), (43.08, 45.32, 45.78, 45.42, 46.60, 46.48), strict=True)
    ),
}

TABLE4 = Table(
    "table4",
    "Table 4: the size of the memory queue (tau_t 0.04)",
    tuple(
        Cell(TITLES[data], f"K {size}", data, {"queue_size": size, "teacher_temperature": 0.04}, number)
        for data, numbers in _QUEUES.items()
        for size, number in numbers.items()
    ),
)

_TEACHER_VIEWS = {
    "none": 31.74,
    "crop": 46.00,
    "flip": 30.98,
    "jitter": 29.46,
    "gray": 29.68,
    "blur": 30.10,
    "crop+flip": 46.60,
    "crop+jitter": 44.44,
    "crop+gray": 42.28,
    "crop+blur": 44.88,
    "crop+flip+jitter": 43.70,
    "crop+flip+gray": 42.28,
    "crop+flip+blur": 44.52,
}

AUGMENTATION = Table(
    "table-augmentation",
    "Table 11: thirteen augmentations of the teacher's view (tau_t 0.04); the paper has Tiny ImageNet alone",
    tuple(
        Cell(words, TITLES[data], data, {"views": [words, "strong"], "teacher_temperature": 0.04}, paper)
        for words, number in _TEACHER_VIEWS.items()
        for data, paper in (("tiny-imagenet", number), ("cifar10", None))
    ),
)

# By row: recipe, changes, number. The paper's batch where one GPU holds it; those of 4096 stay at 256.
_R50: dict[str, tuple[str, Mapping[str, Any], float]] = {
    # Table 5, one backprop
    "supervised": ("imagenet-r50", {"method": "supervised", "epochs": 120}, 76.5),
    "InstDisc": ("imagenet-r50", {"method": "instdisc"}, 58.5),
    "LocalAgg": ("imagenet-r50", {"method": "localagg", "batch_size": 128}, 58.8),
    "MoCo v2": ("imagenet-r50", {"method": "moco-v2"}, 67.5),
    "MoCHi": ("imagenet-r50", {"method": "mochi", "batch_size": 512}, 68.0),
    "CPC v2": ("imagenet-r50", {"method": "cpc-v2", "batch_size": 512}, 63.8),
    "PCL v2": ("imagenet-r50", {"method": "pcl-v2"}, 67.6),
    "AdCo": ("imagenet-r50", {"method": "adco"}, 68.6),
    "ReSSL": ("imagenet-r50", {}, 69.9),
    # and two
    "CLSA-Single": ("imagenet-r50", {"method": "clsa"}, 69.4),
    "SimCLR": ("imagenet-r50", {"method": "simclr"}, 66.8),
    "SwAV": ("imagenet-r50", {"method": "swav", "views": ["strong", "strong"]}, 69.1),
    "SimSiam": ("imagenet-r50", {"method": "simsiam"}, 70.0),
    "BYOL": ("imagenet-r50", {"method": "byol"}, 70.6),
    # Table 6, multi-crop
    "SwAV, multi-crop": ("imagenet-r50", {"method": "swav"}, 72.7),
    "CLSA-Multi": ("imagenet-r50", {"method": "clsa-multi"}, 73.3),
    "ReSSL, 4 crops": ("imagenet-r50-4crops", {}, 73.8),
    "ReSSL, 5 crops": ("imagenet-r50-5crops", {}, 74.7),
}

IMAGENET = Table(
    "imagenet",
    "Tables 5 to 7: ImageNet, 200 epochs",
    (
        *(Cell(row, "ResNet-50", recipe, changes, number) for row, (recipe, changes, number) in _R50.items()),
        # Table 7
        Cell("MoCo v2", "ResNet-18", "imagenet-r18", {"method": "moco-v2"}, 52.2),
        Cell("ReSSL", "ResNet-18", "imagenet-r18", {}, 58.1),
    ),
    quick_epochs=5,
    elsewhere=(
        Elsewhere("AdCo, multi-crop", "ResNet-50", 73.2, "AdCo has one query here; without multi-crop it has a row"),
        Elsewhere(
            "SEED",
            "ResNet-18",
            57.6,
            "first its teacher, the row 'MoCo v2, ResNet-50', then "
            "'ressl pretrain imagenet-r18 --method seed --teacher RUN --then linear'",
        ),
    ),
)

SHOTS = (16, 32, 64, None)
_LOWSHOT: dict[str, tuple[Mapping[str, Any], tuple[float, ...]]] = {
    "Random": ({"epochs": 0}, (10.10, 11.34, 11.96, 12.42)),
    "supervised": ({"method": "supervised", "epochs": 90}, (82.26, 84.00, 85.13, 87.27)),
    "MoCo v2": ({"method": "moco-v2"}, (76.14, 79.16, 81.52, 84.60)),
    "PCL v2": ({"method": "pcl-v2"}, (78.34, 80.72, 82.67, 85.43)),
    "ReSSL": ({}, (79.17, 81.96, 83.81, 86.31)),
}


def shots_name(shots: int | None) -> str:
    return "all labels" if shots is None else f"K {shots}"


LOWSHOT = Table(
    "lowshot",
    "Table 9: low-shot SVMs on VOC07 (mAP), backbones of ImageNet",
    tuple(
        Cell(row, shots_name(k), "imagenet-r50", changes, number, "voc07", k)
        for row, (changes, numbers) in _LOWSHOT.items()
        for k, number in zip(SHOTS, numbers, strict=True)
    ),
    quick_epochs=5,
)

TABLES: dict[str, Table] = {
    table.name: table for table in (TABLE1, TABLE2, TABLE3, TABLE4, TEMPERATURE, AUGMENTATION, IMAGENET, LOWSHOT)
}

# By the paper's numbers, where the name is another.
ALIASES = {
    **dict.fromkeys(("table5", "table6", "table7"), IMAGENET.name),
    **{"table8": "cost", "table9": LOWSHOT.name, "table10": TEMPERATURE.name, "table11": AUGMENTATION.name},
    **{"figure2": "figure-neighbours", "figure3": "figure-tsne"},
}
