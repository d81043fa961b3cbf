"""On a GPU: what makes training fast there changes results by rounding alone. Skipped where there is none."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch

from espalier.bench import gpu_profile
from espalier.learners.features import features
from espalier.nets import backbone, convolution, fused, layers
from espalier.training import Job, Member, Trained, train
from espalier.training.adam import Adam
from espalier.training.again import ask
from espalier.training.job import FAST, SLOW, Speed
from espalier.training.judge import Judge
from espalier.training.model import TrieModel, member_losses
from espalier.training.train import _Run
from tests.nets_help import RATES, candidate, close, job, lesson, modules, quiet, task

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
CODES = ["aaaa.", "aaa..", ".....", ".aaaa", "aAaB.", ".a.a.", "abab.", "A.bBa"]


def on_gpu(made: Job, speed: Speed) -> Job:
    modules = {name: {key: t.cuda() for key, t in state.items()} for name, state in made.modules.items()}
    return replace(made, task=made.task.to("cuda"), modules=modules, speed=speed)


@pytest.fixture(autouse=True)
def as_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def results(made: Job, speed: Speed, codes: list[str] = CODES) -> list[Trained]:
    there = on_gpu(made, speed)
    return train(there, [candidate(code, made.backbone) for code in codes], RATES, quiet).results


@pytest.mark.parametrize(
    ("backbone", "size", "codes"),
    [
        ("tiny", 8, CODES),
        ("resnet", 16, ["aaaaaa.", ".......", "aA....."]),
        ("alexnet-x0.1", 19, ["aaaaa.", "aa....", "......", "a.Aa..", ".aaa.."]),
    ],
)
def test_captured_steps_are_the_same_steps(
    backbone: str, size: int, codes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for after in ("PACK_WHEN_LEFT", "PACK_CAPTURED_AFTER"):  # at once, as other stacks are rounded in another way
        monkeypatch.setattr(import_module(_Run.__module__), after, 0.0)
    made = job(backbone, size=size, max_epochs=6, patience=8, batch=8)
    plain, captured = results(made, SLOW, codes), results(made, Speed(graphs=True), codes)
    for one, other in zip(plain, captured, strict=True):
        assert (one.val_accuracy, one.best_step, one.steps) == (other.val_accuracy, other.best_step, other.steps)
        for left, right in zip(one.states, other.states, strict=True):
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                close(left, right, 1e-5)
    assert len({result.steps for result in plain}) > 1, "some left before others, and the rest was captured anew"


@pytest.mark.parametrize(
    ("backbone", "size"), [("tiny", 8), ("alexnet-x0.25", 19), ("resnet", 8), ("resnet", 16), ("resnet", 32)]
)
def test_gradients_in_bfloat16_are_as_near_to_float32_as_those_of_torch(
    backbone: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all that is trained; the smallest images end as maps of 1×1. Rounded in every layer, a gradient of the first
    is a third off, with kernels of our own or without."""
    codes = CODES_OF[backbone]
    made = job(backbone, size)
    exact, rounded = (gradients(on_gpu(made, speed), codes) for speed in (SLOW, FAST))
    monkeypatch.setattr(fused, "kernels", None)
    monkeypatch.setattr(convolution, "kernels", None)
    torchs = gradients(on_gpu(made, FAST), codes)
    assert exact.keys() == rounded.keys()
    assert all(gradient.dtype == torch.float32 for gradient in rounded.values())
    off = {name: relative(rounded[name], exact[name]) for name in exact}
    torch_off = {name: relative(torchs[name], exact[name]) for name in exact}
    assert sum(off.values()) < 1.1 * sum(torch_off.values())
    for name in exact:
        assert off[name] < (0.3 if backbone == "tiny" else 0.5), name
        assert off[name] < 2 * torch_off[name] + 1e-3, name


@pytest.mark.parametrize("size", [8, 32])
def test_evaluation_in_bfloat16_is_as_near_to_float32_as_that_of_torch(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms in the weights, inputs that are shared, frozen blocks behind trained ones, and stacks that are joined."""
    made = job("resnet", size)
    exact, rounded = (logits(on_gpu(made, speed)) for speed in (SLOW, FAST))
    monkeypatch.setattr(fused, "kernels", None)
    monkeypatch.setattr(convolution, "kernels", None)
    torchs = logits(on_gpu(made, FAST))
    assert relative(rounded, exact) < 1.5 * relative(torchs, exact) + 1e-3
    assert relative(rounded, exact) < 0.05


def logits(made: Job) -> torch.Tensor:
    members = [Member(candidate(code, made.backbone), rate) for code in CODES_OF["resnet"] for rate in RATES]
    with torch.no_grad():
        return TrieModel(made, members).logits(made.task.normalise(made.task.val.x))


CODES_OF = {
    "tiny": ["aaaa.", "aaa..", ".....", ".aaaa", "AAAAA", "a.aA."],
    "alexnet-x0.25": ["aaaaa.", "aa....", "......", ".aaa..", "AAAAAA"],
    "resnet": ["aaaaaa.", "aaaaa..", ".......", ".aaaaaa", "AAAAAAA", "a.a.aA.", ".aaaaa."],
}


def gradients(made: Job, codes: list[str]) -> dict[str, torch.Tensor]:
    members = [Member(candidate(code, made.backbone), rate) for code in codes for rate in RATES]
    model = TrieModel(made, members)
    x, y = made.task.normalise(made.task.train.x), made.task.train.y
    with made.precision():
        logits = model.trie.forward(x, made.modes({}))
    loss = member_losses(logits.float(), y).sum()
    named = {
        f"{depth} {number} {name}": cell.stack[name]
        for number, (depth, cell) in enumerate(model.cells())
        for name in cell.parameter_names()
    }
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@pytest.mark.parametrize(("backbone", "size", "codes"), [("tiny", 8, CODES), ("resnet", 16, ["aaaaaa.", "aA....."])])
def test_the_same_seed_gives_the_same_bits_again(backbone: str, size: int, codes: list[str]) -> None:
    made = job(backbone, size=size, max_epochs=3, patience=100)
    for one, other in zip(results(made, FAST, codes), results(made, FAST, codes), strict=True):
        assert one.val_accuracy == other.val_accuracy
        for left, right in zip(one.states, other.states, strict=True):
            if left is not None and right is not None:
                assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("beside", ["nothing", "one", "shared", "normalised"])
@pytest.mark.parametrize(("training", "trained"), [(True, True), (False, False), (False, True)])
def test_the_fused_norm_is_norm_addition_and_relu(training: bool, trained: bool, beside: str) -> None:
    """Against float64 on the same rounded numbers; what is added may be shared by both members, or have a norm too.
    With old statistics scale and shift may be trained or not."""
    draw = torch.Generator("cuda").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, device="cuda")

    x = last(random(9, 128, 7, 7)).requires_grad_()
    added = None if beside == "nothing" else last(random(9, 64 if beside == "shared" else 128, 7, 7))
    if added is not None:
        added.requires_grad_(beside != "shared")
    names = ("n", "s") if beside == "normalised" else ("n",)
    kinds = ("weight", "bias", "running_mean", "running_var")
    stack = {f"{n}.{kind}": random(2, 64).abs() + 0.5 for n in names for kind in kinds}
    for name in stack:
        stack[name].requires_grad_(trained and "running" not in name)
    exact = {name: t.detach().double().requires_grad_(t.requires_grad) for name, t in stack.items()}
    x64, added64 = (None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in (x, added))
    assert x64 is not None
    assert fused.usable(x, added)
    second = "s" if beside == "normalised" else None
    out = layers.norm_relu(x, stack, "n", training, added, second)
    wanted = layers.norm_relu(x64, exact, "n", training, added64, second)
    assert relative(out, wanted) < 5e-3
    for name in stack:
        if "running" in name:
            assert relative(stack[name], exact[name]) < 1e-5
    wide = last(random(9, 256, 7, 7))  # the gradient may be some columns of a wider matrix
    given = wide[:, 64:192]
    mine = [t for t in (x, added, *stack.values()) if t is not None and t.requires_grad]
    theirs = [t for t in (x64, added64, *exact.values()) if t is not None and t.requires_grad]
    found = torch.autograd.grad(out, mine, given)
    for one, other in zip(found, torch.autograd.grad(wanted, theirs, given.double()), strict=True):
        assert relative(one, other) < 1e-2


def norm_after(members: int, draw: torch.Generator) -> layers.Stack:
    """A convolution of 64 channels and the norm behind it."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(members, 64, *shape, device="cuda", generator=draw)

    stack = {"c.weight": random(64, 3, 3) / 24, "n.weight": random(), "n.bias": random()}
    return stack | {"n.running_mean": random(), "n.running_var": random() ** 2 + 0.1}


@pytest.mark.parametrize(
    ("members", "size", "images"),
    [
        (1, 32, 5),
        (6, 32, 200),
        (6, 16, 1024),
        (42, 8, 75),
        (42, 4, 200),
        (7, 2, 5),
        (1, 8, 6250),  # as large as parts of an evaluation are, where few members are left
        (1, 4, 12500),
        (3, 8, 5000),
    ],
)
@pytest.mark.parametrize(("shared", "adds"), [(False, False), (False, True), (True, False), (True, True)])
def test_a_folded_norm_is_the_norm(
    members: int, size: int, images: int, shared: bool, adds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation a norm goes into the weights of the convolution before it; whatever was in memory before."""
    draw = torch.Generator("cuda").manual_seed(members)
    stack = norm_after(members, draw)
    x, beside = (
        last(torch.randn(images, 64 * count, size, size, device="cuda", generator=draw))
        for count in (1 if shared else members, members)
    )
    added = beside if adds else None
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert convolution.can_fold(x, stack["c.weight"], added)
        found = []
        for _ in range(2):
            memory = torch.full_like(beside, torch.nan)
            del memory
            found.append(layers.conv_norm_relu(x, stack, "c", "n", False, added))
        monkeypatch.setattr(convolution, "can_fold", lambda *given: False)
        wanted = layers.conv_norm_relu(x, stack, "c", "n", False, added)
    assert torch.equal(*found)
    assert relative(found[0].float(), wanted.float()) < 0.01


def test_what_has_a_gradient_or_does_not_fit_is_not_folded() -> None:
    weight = norm_after(3, torch.Generator("cuda").manual_seed(0))["c.weight"]
    x, beside = (last(torch.zeros(2, 64 * m, 4, 4, device="cuda")) for m in (3, 1))
    with torch.autocast("cuda", torch.bfloat16):
        assert not convolution.can_fold(x, weight, None)
        with torch.no_grad():
            assert convolution.can_fold(x, weight, x)
            assert not convolution.can_fold(x, weight, beside)
            assert not convolution.can_fold(last(torch.zeros(2, 3, 4, 4, device="cuda")), weight[:, :, :3], None)
    with torch.no_grad():
        assert not convolution.can_fold(x.float(), weight, None)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("speed", [SLOW, FAST])
def test_parts_that_are_captured_are_answered_as_others(speed: Speed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after members leave, by parts of half a batch and by larger ones."""
    made = job("resnet", 16, eval_batch=16)
    made = on_gpu(replace(made, task=task(size=16, val=90)), speed)
    members = [Member(candidate(code, made.backbone), rate) for code in CODES_OF["resnet"] for rate in RATES]
    for room in (1, 1 << 28):
        monkeypatch.setattr("espalier.training.stacks.ON_GPU", room)
        model, plain = TrieModel(made, members), TrieModel(made, members)
        plain.graphs = None
        judges = Judge(made, model), Judge(made, plain)
        for count in (14, 9, 2):
            model.keep(list(range(count)))
            plain.keep(list(range(count)))
            best = torch.full((count,), 0.3, dtype=torch.float64, device="cuda")
            for _ in range(4):  # as it is, captured, and replayed
                with torch.no_grad():
                    found, wanted = (judge.better_than(best, range(count)) for judge in judges)
                assert torch.equal(found, wanted)


@pytest.mark.parametrize("codes", [["aaaaaa.", "aa.....", "......."], [".aaaaaa", "AAAAAAA", "aaaA..."]])
def test_all_together_say_what_each_says_alone(codes: list[str]) -> None:
    made = on_gpu(job("resnet", 16, max_epochs=2), SLOW)
    results = train(made, [candidate(code, made.backbone) for code in codes], RATES, quiet).results
    val = made.task.val
    together = ask(made, results, val.x, val.y).accuracies
    alone = [ask(made, [result], val.x, val.y).accuracies[0] for result in results]
    for known in (alone, [result.val_accuracy for result in results]):
        assert together == pytest.approx(known, abs=1.5 / len(val)), "rounding may decide of one image"


@pytest.mark.parametrize("name", ["resnet", "alexnet-x0.25", "fc-x0.1"])
def test_past_paths_side_by_side_make_of_images_what_each_makes(name: str, tmp_path: Path) -> None:
    net = backbone(name, (3, 32, 32), 3)
    states = modules(net, "a", "b")
    paths = {f"t{n}": [f"{'ab'[n >> b & 1]}.{block.name}" for b, block in enumerate(net.blocks)] for n in range(20)}
    images = task(size=32, val=70).to("cuda")
    made = replace(lesson(tmp_path, net, paths, states), task=images)
    found = features(made, images, [tuple(path[:-1]) for path in paths.values()], images.val)
    for trunk, together in found.items():
        alone = net.forward([states[m] for m in trunk], images.to("cpu").normalise(images.val.x.cpu())).flatten(1)
        assert relative(together, alone.cuda()) < 0.05


def test_joined_activations_are_side_by_side() -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    parts = [last(torch.randn(3, 64 * m, 5, 7, generator=draw, device="cuda")).requires_grad_() for m in (1, 2, 4)]
    joined, wanted = layers.join(parts), torch.cat(parts, 1)
    assert joined.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(joined, wanted)
    given = last(torch.randn(joined.shape, generator=draw, device="cuda"))
    for one, other in zip(*(torch.autograd.grad(out, parts, given) for out in (joined, wanted)), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("shared", [False, True])
def test_a_fork_is_two_convolutions(shared: bool) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    x = last(torch.randn(5, 64 if shared else 192, 8, 12, generator=draw, device="cuda")).requires_grad_(not shared)
    weight, short = (
        torch.randn(3, 64, 64, k, k, generator=draw, device="cuda").to(torch.bfloat16).float().requires_grad_()
        for k in (3, 1)
    )
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in (x, weight, short)]
    assert convolution.can_fork(x, weight, 2)
    outs = layers.fork(x, weight, short, 2)
    wanted = layers.fork(exact[0], exact[1], exact[2], 2)
    given = [last(torch.randn(out.shape, generator=draw, device="cuda")) for out in outs]
    mine = [t for t in (x, weight, short) if t.requires_grad]
    found = torch.autograd.grad(outs, mine, given)
    right = torch.autograd.grad(wanted, [t for t in exact if t.requires_grad], [g.double() for g in given])
    for one, other in zip((*outs, *found), (*wanted, *right), strict=True):
        assert relative(one, other) < 5e-3


@pytest.mark.parametrize("images", [2, 47, 48])
@pytest.mark.parametrize("shape", [(16, 16), (7, 5), (2, 2)])
def test_convolutions_of_small_batches_are_convolutions(images: int, shape: tuple[int, int]) -> None:
    """Both sides of the size from which cuDNN has them."""
    draw = torch.Generator("cuda").manual_seed(0)
    x = last(torch.randn(images, 192, *shape, generator=draw, device="cuda")).requires_grad_()
    weight = torch.randn(3, 64, 64, 3, 3, generator=draw, device="cuda").to(torch.bfloat16).float().requires_grad_()
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    outs = [layers.conv(a, b, padding=1) for a, b in ((x, weight), exact)]
    given = last(torch.randn(outs[0].shape, generator=draw, device="cuda"))
    found = torch.autograd.grad(outs[0], (x, weight), given)
    right = torch.autograd.grad(outs[1], exact, given.double())
    for one, other in zip((outs[0], *found), (outs[1], *right), strict=True):
        assert relative(one, other) < 5e-3


@pytest.mark.parametrize(
    ("members", "stride", "kernel", "padding"),
    [(6, 1, 3, 1), (3, 2, 3, 1), (2, 2, 1, 0), (3, 1, 1, 0), (1, 1, 3, 1), (4, 1, 5, 2), (3, 1, 4, 0), (2, 1, 2, 0)],
)
@pytest.mark.parametrize("biased", [False, True])
def test_the_gradients_of_convolutions_are_those_of_torch(
    members: int, stride: int, kernel: int, padding: int, biased: bool
) -> None:
    draw = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(5, members * 8, 10, 10, generator=draw, device="cuda", dtype=torch.float64).requires_grad_()
    shape = (members, 12, 8, kernel, kernel)
    weight = torch.randn(shape, generator=draw, device="cuda", dtype=torch.float64).requires_grad_()
    bias = torch.randn(members, 12, generator=draw, device="cuda", dtype=torch.float64).requires_grad_()
    flat, known = (bias.flatten(), [x, weight, bias]) if biased else (None, [x, weight])
    out = layers.conv(x, weight, bias if biased else None, stride, padding)
    plain = torch.nn.functional.conv2d(x, weight.flatten(0, 1), flat, stride, padding, groups=members)
    torch.testing.assert_close(out, plain)
    given = torch.randn(out.shape, generator=draw, device="cuda", dtype=torch.float64)
    for one, other in zip(*(torch.autograd.grad(y, known, given) for y in (out, plain)), strict=True):
        torch.testing.assert_close(one, other)


def test_every_kernel_that_is_counted_by_its_name_is_there() -> None:
    assert gpu_profile.OWN_ELSE.keys() <= gpu_profile.own_kernels().keys()


def relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    gap, size = (found.double() - wanted.double()).norm(), wanted.double().norm()
    return float((gap / size).detach())


def test_adam_on_the_gpu_is_adam() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(3, 5, 7, generator=draw)
    rates, decays = torch.tensor([1e-2, 1e-3, 1e-1]), torch.tensor([0.0, 1e-2, 1e-1])
    optimisers = [
        Adam([values.to(device, copy=True)], [rates.to(device)], [decays.to(device)]) for device in ("cpu", "cuda")
    ]
    for _ in range(5):
        slope = torch.randn(3, 5, 7, generator=draw)
        for adam in optimisers:
            adam.step((slope.to(adam.lr.device),))
    left, right = (adam.parameters[0].cpu() for adam in optimisers)
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    assert not torch.equal(left, values)
