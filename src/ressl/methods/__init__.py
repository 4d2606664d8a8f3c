"""Methods, one readable file each. ``METHODS`` is the whole list: nothing registers itself."""

from ressl.methods.adco import AdCo
from ressl.methods.base import Carry, Method, Output
from ressl.methods.byol import BYOL
from ressl.methods.clsa import CLSA, CLSAMulti
from ressl.methods.cpc_v2 import CPCV2
from ressl.methods.instdisc import InstDisc
from ressl.methods.localagg import LocalAgg
from ressl.methods.mochi import MoCHi
from ressl.methods.moco_v2 import MoCoV2
from ressl.methods.pcl_v2 import PCLV2
from ressl.methods.ressl import ReSSL
from ressl.methods.seed import SEED
from ressl.methods.simclr import SimCLR
from ressl.methods.simsiam import SimSiam
from ressl.methods.supervised import Supervised
from ressl.methods.swav import SwAV

METHODS: dict[str, type[Method]] = {
    "ressl": ReSSL,
    "moco-v2": MoCoV2,
    "simclr": SimCLR,
    "byol": BYOL,
    "simsiam": SimSiam,
    "supervised": Supervised,
    "swav": SwAV,
    "instdisc": InstDisc,
    "localagg": LocalAgg,
    "mochi": MoCHi,
    "cpc-v2": CPCV2,
    "pcl-v2": PCLV2,
    "adco": AdCo,
    "clsa": CLSA,
    "clsa-multi": CLSAMulti,
    "seed": SEED,
}

__all__ = ["METHODS", "Carry", "Method", "Output", "ReSSL"]
