"""The six datasets of the CTrL streams: their official files, where those lie, and how they are read.

Only facts; downloading is `fetch`, the formats are `idx`, `cifar`, `svhn` and `dtd`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from espalier.data import cifar, dtd, idx, svhn
from espalier.data.imageset import Dataset


@dataclass(frozen=True)
class OfficialFile:
    name: str
    size: int
    md5: str
    urls: tuple[str, ...]


class Reader(Protocol):
    def __call__(
        self, folder: Path, name: str, class_names: tuple[str, ...], official: Mapping[str, int]
    ) -> Dataset: ...


@dataclass(frozen=True, kw_only=True)
class Official:
    name: str
    title: str
    files: tuple[OfficialFile, ...]
    class_names: tuple[str, ...]
    counts: Mapping[str, int]  # images of each split
    licence: str
    reader: Reader

    def read(self, folder: Path) -> Dataset:
        return self.reader(folder, self.name, self.class_names, self.counts)


def _file(name: str, size: int, md5: str, *folders: str) -> OfficialFile:
    return OfficialFile(name, size, md5, tuple(folder + name for folder in folders))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DIGITS = tuple("0123456789")

FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR100 = _words(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
    lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
    pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
    shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
    telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """
)

DTD = _words(
    """
    banded blotchy braided bubbly bumpy chequered cobwebbed cracked crosshatched crystalline dotted fibrous
    flecked freckled frilly gauzy grid grooved honeycombed interlaced knitted lacelike lined marbled matted
    meshed paisley perforated pitted pleated polka-dotted porous potholed scaly smeared spiralled sprinkled
    stained stratified striped studded swirly veined waffled woven wrinkled zigzagged
    """
)

_MNIST = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
_FASHION = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
)
_SVHN = ("http://ufldl.stanford.edu/housenumbers/", "https://ufldl.stanford.edu/housenumbers/")
_CIFAR = ("https://www.cs.toronto.edu/~kriz/",)
_DTD = ("https://www.robots.ox.ac.uk/~vgg/data/dtd/download/", "https://thor.robots.ox.ac.uk/datasets/dtd/")

_ALL = (
    Official(
        reader=idx.read,
        name="mnist",
        title="MNIST",
        files=(
            _file("train-images-idx3-ubyte.gz", 9912422, "f68b3c2dcbeaaa9fbdd348bbdeb94873", *_MNIST),
            _file("train-labels-idx1-ubyte.gz", 28881, "d53e105ee54ea40749a09fcbcd1e9432", *_MNIST),
            _file("t10k-images-idx3-ubyte.gz", 1648877, "9fb629c4189551a2d022fa330f9573f3", *_MNIST),
            _file("t10k-labels-idx1-ubyte.gz", 4542, "ec29112dd5afa0611ce80d1b7f02629c", *_MNIST),
        ),
        class_names=DIGITS,
        counts={"train": 60000, "test": 10000},
        licence="CC BY-SA 3.0 (as usually given)",
    ),
    Official(
        reader=idx.read,
        name="fashion-mnist",
        title="Fashion-MNIST",
        files=(
            _file("train-images-idx3-ubyte.gz", 26421880, "8d4fb7e6c68d591d4c3dfef9ec88bf0d", *_FASHION),
            _file("train-labels-idx1-ubyte.gz", 29515, "25c81989df183df01b3e8a0aad5dffbe", *_FASHION),
            _file("t10k-images-idx3-ubyte.gz", 4422102, "bef4ecab320f06d8554ea6380940ec79", *_FASHION),
            _file("t10k-labels-idx1-ubyte.gz", 5148, "bb300cfdad3c16e7a12a480ee83cd310", *_FASHION),
        ),
        class_names=FASHION,
        counts={"train": 60000, "test": 10000},
        licence="MIT",
    ),
    Official(
        reader=svhn.read,
        name="svhn",
        title="SVHN (cropped digits)",
        files=(
            _file("train_32x32.mat", 182040794, "e26dedcc434d2e4c54c9b2d4a06d8373", *_SVHN),
            _file("test_32x32.mat", 64275384, "eb5a983be6a315427106f1b164d9cef3", *_SVHN),
        ),
        class_names=DIGITS,
        counts={"train": 73257, "test": 26032},
        licence="non-commercial use only",
    ),
    Official(
        reader=cifar.read,
        name="cifar10",
        title="CIFAR-10",
        files=(_file("cifar-10-binary.tar.gz", 170052171, "c32a1d4ab5d03f1284b67883e8d87530", *_CIFAR),),
        class_names=CIFAR10,
        counts={"train": 50000, "test": 10000},
        licence="none stated; cite Krizhevsky 2009",
    ),
    Official(
        reader=cifar.read,
        name="cifar100",
        title="CIFAR-100",
        files=(_file("cifar-100-binary.tar.gz", 168513733, "03b5dce01913d631647c71ecec9e9cb8", *_CIFAR),),
        class_names=CIFAR100,
        counts={"train": 50000, "test": 10000},
        licence="none stated; cite Krizhevsky 2009",
    ),
    Official(
        reader=dtd.read,
        name="dtd",
        title="Describable Textures (DTD)",
        files=(_file("dtd-r1.0.1.tar.gz", 625239812, "fff73e5086ae6bdbea199a49dfb8a4c1", *_DTD),),
        class_names=DTD,
        counts={"train": 1880, "val": 1880, "test": 1880},
        licence="research use only",
    ),
)

OFFICIAL: dict[str, Official] = {dataset.name: dataset for dataset in _ALL}
