"""`espalier bench gpu` in small and on a CPU: that it measures what it says, and that both ways do the same work."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from espalier.bench import gpu, gpu_profile, gpu_steps, gpu_tasks
from espalier.bench.gpu_plain import PlainTraining, network
from espalier.cli import bench_gpu
from espalier.errors import InputError
from espalier.files import write_json
from espalier.nets import backbone
from espalier.training import Fresh, Member, Setting, describe
from espalier.training.cost import forward_flops
from espalier.training.model import TrieModel
from espalier.training.plain import train_one_by_one
from tests.nets_help import candidate, close, job

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def wide_console(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells are not broken over lines, whatever the terminal."""
    monkeypatch.setattr(bench_gpu, "console", Console(width=200))


def test_members_are_dealt_out_to_all_structures_as_the_trainer_orders_them() -> None:
    work = gpu.job(CPU, "resnet", 4, 4, 4, 1, 0)
    all_new = (Fresh(),) * 7
    assert [m.candidate for m in gpu.members(work, 1)] == [all_new]
    of_8, of_42 = gpu.members(work, 8), gpu.members(work, 42)
    assert [describe(c).count("f") for c in gpu.structures(of_8)] == [1, 2, 3, 4, 5, 6, 7]
    assert gpu.structures(of_8)[all_new] == 2
    assert set(gpu.structures(of_42).values()) == {6}
    assert of_42 == [Member(c, s) for c in gpu.candidates(work)[1:] for s in work.protocol.grid]
    of_102 = gpu.members(work, 102)
    assert len(of_102) == 102
    assert set(of_102) == set(of_42)


@pytest.mark.parametrize("name", ["tiny", "resnet", "alexnet", "fc"])
def test_the_plain_network_is_the_same_network(name: str) -> None:
    work = gpu.job(CPU, name, 6, 4, 4, 1, 0)
    states = list(work.modules.values())
    for state in states:
        for key, tensor in state.items():
            if key.endswith("running_var"):
                tensor += 0.5
    frozen = network(work, Member(gpu.candidates(work)[0], Setting(0.1, 0.0))).eval()
    assert not any(p.requires_grad for p in frozen.parameters())
    x = torch.randn(3, *gpu.IMAGE, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(frozen(x), backbone(name, gpu.IMAGE, gpu.CLASSES).forward(states, x))


def test_the_plain_loop_trains_as_the_plain_trainer_does() -> None:
    """The comparison is fair: the same weights come out after the same batches."""
    work = job(max_epochs=1, early=())
    for code in ("aa...", "....."):
        member = Member(candidate(code, work.backbone), Setting(1e-2, 1e-2))
        training = PlainTraining(work, member)
        before, begun = training.accuracy(), training._copy()
        training.epoch()
        (wanted,) = train_one_by_one(work, [member.candidate], [member.setting])
        assert wanted.val_accuracy == max(before, training.best_accuracy)
        assert wanted.steps == work.steps_per_epoch() == 3
        now = training.network.state_dict()
        for place, state in enumerate(wanted.early[3]):
            own = {name.split(".", 1)[1]: tensor for name, tensor in now.items() if name.startswith(f"{place}.")}
            changed = any(not torch.equal(now[name], begun[name]) for name in now if name.startswith(f"{place}."))
            assert changed is (code[place] == ".")
            if state is not None:
                close({name: own[name] for name in state}, state, 1e-4)


def test_steps_have_a_line_for_every_way_and_their_operations_are_counted() -> None:
    seen: list[tuple[int, int]] = []
    lines = gpu_steps.measure(
        CPU, "tiny", members=(1, 6), batches=(4, 2), report=lambda *done: seen.append(done), about=0.0
    )
    assert [(line.batch, line.members, line.way) for line in lines] == [
        (batch, count, way) for batch in (4, 2) for count in (1, 6) for way in gpu_steps.WAYS
    ]
    assert seen == [(done, 24) for done in range(1, 25)], "2 × 5 structures × 2 batches, and 4 tries"
    rates = {line.way: line for line in lines if (line.batch, line.members) == (4, 1)}
    work = gpu.job(CPU, "tiny", 4, 4, 4, 1, 0)
    per_step = 4 * TrieModel(work, gpu.members(work, 1)).flops()[0]
    assert 4 * 2 * forward_flops(work.backbone) < per_step < 4 * 3 * forward_flops(work.backbone)
    for line in rates.values():
        assert line.model_steps_per_second is not None
        assert line.tflops == pytest.approx(line.model_steps_per_second * per_step / 1e12)


def test_one_by_one_counts_every_member() -> None:
    dear, cheap = gpu_steps._Cost(3.0, 30, 7), gpu_steps._Cost(1.0, 10, 9)
    assert gpu_steps._one_by_one([(dear, 2), (cheap, 4)]) == gpu_steps._Cost(10.0, 100, 9)
    assert gpu_steps._one_by_one([(dear, 2), (None, 4)]) is None


def raises(error: Exception, then: Exception | None = None) -> Callable[[], None]:
    def work() -> None:
        try:
            raise error
        finally:
            if then is not None:
                raise then

    return work


def test_too_little_memory_is_told_from_other_errors() -> None:
    full = torch.OutOfMemoryError("no room")
    assert gpu.fitting(lambda: 3, CPU) == 3
    assert gpu.fitting(raises(full), CPU) is None
    assert gpu.fitting(raises(full, then=RuntimeError("the capture failed")), CPU) is None
    with pytest.raises(RuntimeError, match="another"):
        gpu.fitting(raises(RuntimeError("another")), CPU)


def test_out_of_memory_is_a_cell_of_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(*given: object) -> gpu_steps._Cost:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(gpu_steps, "_trie", no_room)
    monkeypatch.setattr(gpu_steps, "_eager", lambda *given: gpu_steps._Cost(2.0, 10**12, 10**9))
    lines = gpu_steps.measure(CPU, "tiny", members=(1,), batches=(4,), about=0.0)
    assert [line.model_steps_per_second for line in lines] == [0.5, None, None]
    bench_gpu.print_steps(lines)
    assert capsys.readouterr().out.count("out of memory") == 2


@pytest.mark.parametrize("whole", [False, True])
def test_tasks_make_all_iterations_and_say_what_is_extrapolated(
    whole: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    size = gpu_tasks.Size(train=10, val=4, epochs=2)
    lines = gpu_tasks.measure(CPU, "fc-x0.01", [size], about=None if whole else 0.0, batch=4)
    mntdp, independent = lines
    assert (mntdp.members, independent.members) == (3 * 4, 4)
    for line in lines:
        assert line.trie.steps == 2 * 3
        assert line.one_by_one.extrapolated is not whole
        assert line.one_by_one.epochs == ((2, 2) if whole else (1, 1))
    assert mntdp.one_by_one.runs == (12 if whole else 3)
    assert mntdp.one_by_one.seconds > independent.one_by_one.seconds
    bench_gpu.print_tasks(lines)
    told = capsys.readouterr().out
    assert ("3 of 12 members were trained, 1 of 2 epochs" in told) is not whole


def test_an_extrapolation_is_epochs_times_settings() -> None:
    work = gpu.job(CPU, "fc-x0.01", 10, 4, 4, 50, 0)
    trained = [[gpu_tasks._Trained(0.5, 3, 10)], [gpu_tasks._Trained(0.25, 7, 20)]]
    assert gpu_tasks._together(work, trained) == gpu_tasks.OneByOne(50 * 4 * 0.75, 2, (3, 7), True, 20)


def test_a_profile_sums_what_a_step_and_an_evaluation_spend() -> None:
    step, evaluation = gpu_profile.measure(CPU, "tiny", members=5, batch=4, val=6, about=0.0)
    assert (step.work, step.images, evaluation.work, evaluation.images) == ("step", 4, "evaluation", 6)
    for profile in (step, evaluation):
        assert profile.ms > 0
        assert profile.tflops > 0
        kinds = profile.kinds()
        assert sum(kinds.values()) == pytest.approx(sum(kernel.ms for kernel in profile.kernels))
        assert kinds["convolutions"] > 0
        assert kinds["norm passes"] > 0
        assert profile.kernels[0].ms >= profile.kernels[-1].ms
    names = [{kernel.name for kernel in profile.kernels} for profile in (step, evaluation)]
    assert any("backward" in name for name in names[0])
    assert not any("backward" in name for name in names[1])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64", "convolutions"),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816wgrad_optimized_bf16_64x64_nhwc>", "convolutions"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(...)", "copies"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(...)", "norm passes"),
        ("void at::native::batch_norm_collect_statistics_channels_last_kernel<...>", "norm passes"),
        ("nvjet_tst_128x64_64x7_1x2_h_bz_coopB_NTN", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>(...)", "products"),
        ("void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(...)>", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, ...>", "copies"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<...>", "copies"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<...>>>", "reductions"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 4, true, false>(...)", "reductions"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>", "elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>", "optimiser"),
        ("adam", "optimiser"),
        ("backward_apply", "norm passes"),
        ("something_new", "other"),
    ],
)  # fmt: skip
def test_kernels_are_told_apart_by_name(name: str, kind: str) -> None:
    assert gpu_profile.kind_of(name, {"backward_apply": "norm passes", "adam": "optimiser"}) == kind


def test_the_whole_command_prints_every_part_and_gives_all_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    limits, steps, tasks, profile = gpu.limits, gpu_steps.measure, gpu_tasks.measure, gpu_profile.measure
    monkeypatch.setattr(gpu, "limits", partial(limits, side=64, copied=2**16, about=0.0))
    monkeypatch.setattr(gpu_steps, "measure", partial(steps, about=0.0))
    monkeypatch.setattr(gpu_tasks, "measure", partial(tasks, sizes=[gpu_tasks.Size(8, 4, 2)]))
    monkeypatch.setattr(gpu_tasks, "ABOUT", 0.0)
    monkeypatch.setattr(gpu_profile, "measure", partial(profile, members=3, batch=4, val=4, about=0.0))
    *_, figures = bench_gpu.run(CPU, None, [2], [4], "fc-x0.01", 0, whole=False, verbose=True)
    told = capsys.readouterr().out
    for part in (
        "training steps",
        "whole tasks",
        "kernels of a step",
        "kernels of an evaluation",
        "TB/s",
        "other: ",
        torch.__version__,
    ):
        assert part in told
    assert {"versions", "hardware", "limits", "steps", "tasks", "profiles"} <= set(figures)
    write_json(tmp_path / "figures.json", figures)
    assert json.loads((tmp_path / "figures.json").read_text())["tasks"][0]["times_faster"] > 0


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="there is none that PyTorch can use"):
        bench_gpu.gpu(out=tmp_path / "figures.json")
    with pytest.raises(InputError, match="there is no backbone 'vgg'"):
        bench_gpu.gpu(network="vgg")
    assert not list(tmp_path.iterdir())
