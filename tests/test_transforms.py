import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from espalier.data.scale import planes
from espalier.streams import transforms


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, derandomize=True)
@given(st.integers(0, 8), st.integers(0, 8), st.booleans(), st.sampled_from([1, 3]))
def test_crop_flip_is_what_pillow_does(top: int, left: int, flip: bool, channels: int) -> None:
    x = images(2, channels, 12, 12)
    got = transforms.crop_flip(x, torch.tensor([top, 4]), torch.tensor([left, 4]), torch.tensor([flip, False]), pad=4)
    array = x[0].permute(1, 2, 0).numpy()
    picture = ImageOps.expand(Image.fromarray(array if channels == 3 else array[:, :, 0]), 4)
    picture = picture.crop((left, top, left + 12, top + 12))
    expected = np.asarray(ImageOps.mirror(picture) if flip else picture).reshape(12, 12, channels)
    assert np.array_equal(got[0].permute(1, 2, 0).numpy(), expected)
    assert torch.equal(got[1], x[1]), "the middle crop is the image itself"


def test_augment_moves_and_mirrors_every_image_on_its_own() -> None:
    x = images(1, 3, 8, 8).expand(400, -1, -1, -1)
    got = transforms.augment(x, torch.Generator().manual_seed(0), pad=1)
    assert len({image.numpy().tobytes() for image in got}) == 18, "9 places, mirrored or not"
    same = transforms.augment(x, torch.Generator().manual_seed(0), pad=1)
    assert torch.equal(got, same)
    unflipped = transforms.augment(x, torch.Generator().manual_seed(0), pad=1, flip=False)
    assert len({image.numpy().tobytes() for image in unflipped}) == 9


def test_scaling_keeps_white_white_and_black_black() -> None:
    x = np.concatenate([np.full((1, 28, 28, 1), 255), np.zeros((1, 28, 28, 1))]).astype(np.uint8)
    assert np.unique(planes(x, 32)).tolist() == [0, 255]
    assert planes(x, 14).shape == (2, 1, 14, 14)


def test_scaling_is_pillow_s_to_one_grey_level() -> None:
    x = images(5, 28, 28, 3).numpy()
    expected = np.asarray(Image.fromarray(x[0]).resize((32, 32), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    assert np.abs(planes(x, 32)[0].astype(int) - expected.astype(int)).max() <= 1


def test_an_image_that_shrinks_in_one_direction_only_is_averaged_in_it() -> None:
    stripes = np.zeros((1, 128, 20, 1), np.uint8)
    stripes[:, ::2] = 255
    assert abs(planes(stripes, 32).astype(int) - 128).max() < 40, "no stripe is left out"


def test_planes_of_the_right_size_are_the_same_pixels() -> None:
    x = images(5, 8, 8, 3).numpy()
    assert np.array_equal(planes(x, 8), x.transpose(0, 3, 1, 2))


def test_channels() -> None:
    grey = images(2, 1, 4, 4)
    rgb = transforms.to_channels(grey, 3)
    assert rgb.shape == (2, 3, 4, 4)
    assert torch.equal(transforms.to_channels(rgb, 1), grey)


@pytest.mark.parametrize("colour", [(255, 0, 0), (0, 255, 0), (0, 0, 255)])
def test_background_takes_the_colour_and_ink_stays_white(colour: tuple[int, int, int]) -> None:
    x = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1)
    got = transforms.recolour_background(x, colour)
    assert got[0, :, 0, 0].tolist() == list(colour)
    assert got[255, :, 0, 0].tolist() == [255, 255, 255]
    ink, background = x.int(), torch.tensor(colour).view(1, 3, 1, 1)
    assert torch.equal(got.int(), ink + (255 - ink) * background // 255), "the released benchmark's formula"


def test_statistics_are_those_of_the_pixels() -> None:
    x = images(50, 3, 8, 8)
    mean, std = transforms.statistics(x)
    exact = x.double() / 255
    assert torch.allclose(mean.flatten().double(), exact.mean((0, 2, 3)), atol=1e-7)
    assert torch.allclose(std.flatten().double(), exact.std((0, 2, 3), correction=0), atol=1e-7)
    normal = transforms.normalise(x, mean, std)
    assert normal.mean((0, 2, 3)).abs().max() < 1e-5
    assert (normal.std((0, 2, 3)) - 1).abs().max() < 1e-3


def test_a_constant_channel_is_not_blown_up() -> None:
    """Red background: the red channel is 255 everywhere, also where a pixel is off by one."""
    x = images(400, 3, 32, 32)
    x[:, 0] = 255
    x[0, 0, 0, 0] = 254
    mean, std = transforms.statistics(x)
    assert std[0].item() == 1
    assert transforms.normalise(x, mean, std)[:, 0].abs().max() < 0.01
