import numpy as np
import pytest

from espalier import DataFolder, Dataset, ImageSet, InputError
from espalier.data.pools import cut_pools

# Pool sizes per class of the released benchmark: train, val, test.
PAPER_POOLS = {
    "cifar10": (4500, 500, 1000),
    "cifar100": (450, 50, 100),
    "fashion-mnist": (5500, 500, 1000),
    "dtd": (53, 27, 40),
}


def numbered(count: int, start: int = 0) -> np.ndarray:
    images = np.zeros((count, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(start, start + count)
    return images


@pytest.mark.parametrize("name", PAPER_POOLS)
def test_pools_have_the_benchmark_s_sizes(name: str, fake_data: DataFolder) -> None:
    pools = fake_data.pools(name, 4)
    for split, size in zip(("train", "val", "test"), PAPER_POOLS[name], strict=True):
        assert {len(ids) for ids in pools.of_class[split].values()} == {size}


def test_pools_of_mnist_and_svhn_keep_500_for_validation(fake_data: DataFolder) -> None:
    for name in ("mnist", "svhn"):
        pools = fake_data.pools(name, 4)
        assert {len(ids) for ids in pools.of_class["val"].values()} == {500}
    assert len(fake_data.pools("mnist", 4).of_class["train"]["5"]) == 5421 - 500


def test_train_and_val_indices_never_meet(fake_data: DataFolder) -> None:
    pools = fake_data.pools("dtd", 4)
    train = np.concatenate(list(pools.of_class["train"].values()))
    val = np.concatenate(list(pools.of_class["val"].values()))
    assert len(np.intersect1d(train, val)) == 0
    assert len(train) + len(val) == 80 * 47


def test_copies_of_judged_images_are_not_trained_on() -> None:
    """Image 3 stands in train and test, images 5 and 6 are one picture in train."""
    train = numbered(12)
    train[6] = train[5]
    test = numbered(4, start=100)
    test[0] = train[3]
    labels = np.zeros(12, np.int64)
    sets = {
        "train": ImageSet(train, labels, ("a", "b")),
        "test": ImageSet(test, np.zeros(4, np.int64), ("a", "b")),
    }
    pools = cut_pools(Dataset("twice", sets), 2)

    def contents(split: str) -> set[bytes]:
        return {pools.images[split][i].tobytes() for i in pools.of_class[split]["a"]}

    assert not contents("train") & contents("val")
    assert not contents("train") & contents("test")
    assert not contents("val") & contents("test")
    assert train[3].tobytes() not in contents("train") | contents("val")


def test_real_pools_are_disjoint_by_content(real_data: DataFolder) -> None:
    """Over all datasets of the long stream: CIFAR-100 has pictures in both its splits, and some of CIFAR-10's."""
    held: dict[str, set[bytes]] = {"train": set(), "val": set(), "test": set()}
    for name in ("cifar100", "cifar10"):
        pools = real_data.pools(name, 32)
        for split, of_class in pools.of_class.items():
            held[split] |= {pools.images[split][i].tobytes() for ids in of_class.values() for i in ids}
    assert not held["train"] & held["val"]
    assert not held["train"] & held["test"]
    assert not held["val"] & held["test"]


def test_a_dataset_without_test_images_is_refused() -> None:
    only = Dataset("only", {"train": ImageSet(numbered(4), np.array([0, 0, 1, 1]), ("a", "b"))})
    with pytest.raises(InputError, match="needs a train and a test split"):
        cut_pools(only, 2)
