"""How candidates are trained and chosen: the paper's way, and a quick one for the mini streams."""

from dataclasses import dataclass
from itertools import product

from espalier.errors import InputError
from espalier.nets import split_name
from espalier.training.candidate import Setting


@dataclass(frozen=True)
class Protocol:
    name: str
    batch: int
    max_epochs: int
    patience: int  # iterations without a better validation accuracy
    grid: tuple[Setting, ...]
    fc_grid: tuple[Setting, ...]  # for the fully connected backbone
    strengths: tuple[float, ...]  # of EWC's penalty, to choose from on the whole stream
    pad: int  # of the random crops, in pixels per 32 pixels of the image's side; 0: no crops
    flip: bool = True
    early: tuple[int, ...] = (1, 2, 3, 4, 5, 10)  # evaluated after these iterations, besides 0 and every epoch
    eval_batch: int = 1024

    def settings(self, backbone: str) -> tuple[Setting, ...]:
        return self.fc_grid if split_name(backbone)[0] == "fc" else self.grid


def _grid(rates: tuple[float, ...], decays: tuple[float, ...]) -> tuple[Setting, ...]:
    return tuple(Setting(lr, decay) for lr, decay in product(rates, decays))


PROTOCOLS = {
    p.name: p
    for p in (
        Protocol(
            "paper",
            batch=256,
            max_epochs=300,
            patience=300,
            grid=_grid((1e-2, 1e-3), (0.0, 1e-5, 1e-4)),
            fc_grid=_grid((1e-4, 1e-3), (0.0, 1e-5)),
            strengths=(1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1e3, 5e3, 1e4),
            pad=4,
        ),
        Protocol(
            "quick",
            batch=32,
            max_epochs=60,
            patience=150,
            grid=_grid((1e-2, 3e-3), (0.0,)),
            fc_grid=_grid((1e-3,), (0.0,)),
            strengths=(1.0, 100.0, 1e4),
            pad=4,
            flip=False,
            early=(1, 2, 3, 4, 5),
        ),
    )
}


def protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise InputError(f"there is no protocol {name!r}; the protocols are {', '.join(PROTOCOLS)}.")
    return PROTOCOLS[name]
