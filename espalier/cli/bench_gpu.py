"""`espalier bench gpu`: what the trie gains over training members one by one, on a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Column, Table

from espalier.bench import gpu as shared
from espalier.bench import gpu_profile, gpu_steps, gpu_tasks
from espalier.cli.console import console, counter, progress_bar, say
from espalier.errors import InputError
from espalier.files import write_json
from espalier.nets import backbone
from espalier.runs.hardware import hardware, versions

SHOWN = 5  # kernels of no kind, with --verbose


class Part(StrEnum):
    STEPS = "steps"
    TASKS = "tasks"
    PROFILE = "profile"


def gpu(
    part: Annotated[Part | None, typer.Option(help="One part only; else all.")] = None,
    members: Annotated[
        list[int] | None, typer.Option(min=1, help="Members whose steps are timed, else 1, 8, 42, 102.")
    ] = None,
    batch: Annotated[list[int] | None, typer.Option(min=2, help="Their batch sizes, else 256, 32.")] = None,
    network: Annotated[str, typer.Option("--backbone")] = "resnet",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    whole: Annotated[
        bool, typer.Option("--whole", help="Train all members of the tasks one by one to the end.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", dir_okay=False, help="Where all figures go.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Name the kernels that are of no known kind.")] = False,
) -> None:
    """What the trie gains over training members one by one: steps, whole tasks, and where the time goes."""
    backbone(network, shared.IMAGE, shared.CLASSES)
    if not torch.cuda.is_available():
        raise InputError("this measures a GPU, and there is none that PyTorch can use; run it where there is one.")
    members, batch = members or list(gpu_steps.MEMBERS), batch or list(gpu_steps.BATCHES)
    for figures in run(torch.device("cuda"), part, members, batch, network, seed, whole, verbose):
        if out is not None:
            write_json(out, figures)
    if out is not None:
        say(f"all figures are in {out}")


def run(
    device: torch.device,
    part: Part | None,
    members: Sequence[int],
    batches: Sequence[int],
    network: str,
    seed: int,
    whole: bool,
    verbose: bool,
) -> Iterator[dict[str, Any]]:
    """Print each part as soon as it is measured; gives all figures so far, for a file."""
    say(f"backbone {network}, seed {seed}; {versions()}; {hardware(device)}")
    limits = shared.limits(device)
    say(
        f"the device's limits: {limits.matmul_tflops:.0f} TFLOP/s in a large product in bfloat16, "
        f"{limits.copy_tb_per_second:.2f} TB/s read and written in a copy"
    )
    figures: dict[str, Any] = {
        "versions": versions(),
        "hardware": hardware(device),
        "backbone": network,
        "seed": seed,
        "limits": asdict(limits),
    }
    if part in (None, Part.STEPS):
        with progress_bar() as bar:
            lines = gpu_steps.measure(device, network, members, batches, seed, counter(bar, "steps"))
        print_steps(lines)
        figures["steps"] = [asdict(line) for line in lines]
        yield figures
    if part in (None, Part.TASKS):
        with progress_bar() as bar:
            about = None if whole else gpu_tasks.ABOUT
            report = counter(bar, "tasks")
            tasks = shared.fitting(
                lambda: gpu_tasks.measure(device, network, seed=seed, report=report, about=about), device
            )
        if tasks is None:
            say("whole tasks: out of memory")
            tasks = []
        print_tasks(tasks)
        figures["tasks"] = [{**asdict(line), "times_faster": line.times_faster} for line in tasks]
        yield figures
    if part in (None, Part.PROFILE):
        profiles = shared.fitting(lambda: gpu_profile.measure(device, network, seed=seed), device)
        if profiles is None:
            say("the profile of a step: out of memory")
            return
        for profile in profiles:
            print_profile(profile, verbose)
        figures["profiles"] = [{**asdict(profile), "kinds_ms": profile.kinds()} for profile in profiles]
        yield figures


def print_steps(lines: Sequence[gpu_steps.Line]) -> None:
    columns = ("members", "batch", "model-steps/s", "times faster", "TFLOP/s", "peak GB")
    table = Table(Column("training steps", no_wrap=True), *columns, box=None)
    eager = {(line.members, line.batch): line.model_steps_per_second for line in lines if line.way == gpu_steps.EAGER}
    for line in lines:
        asked = line.way, str(line.members), str(line.batch)
        if line.model_steps_per_second is None or line.tflops is None or line.peak_memory is None:
            table.add_row(*asked, "out of memory")
            continue
        base = eager[line.members, line.batch]
        gain = "" if base is None else f"{line.model_steps_per_second / base:.1f}"
        table.add_row(
            *asked, f"{line.model_steps_per_second:,.0f}", gain, f"{line.tflops:.1f}", f"{line.peak_memory / 1e9:.2f}"
        )
    console.print(table)
    say(
        "members: MNTDP-D's candidates that train something, dealt out evenly, all new first, under the settings of "
        "the paper's grid (more members than candidates × settings: settings come again); one by one, a step of each "
        "kind of candidate was timed, and counts as often as it has members; memory one by one is the largest member's."
    )


def print_tasks(lines: Sequence[gpu_tasks.Line]) -> None:
    columns = (
        "learner",
        "members",
        "trie s",
        "one by one s",
        "times faster",
        "trie TFLOP/s",
        "trie GB",
        "one by one GB",
    )
    table = Table(Column("whole tasks", no_wrap=True), "iterations", *columns, box=None)
    for line in lines:
        trie, plain = line.trie, line.one_by_one
        table.add_row(
            f"{line.size.train:,} + {line.size.val:,} images",
            f"{trie.steps:,}",
            line.learner,
            str(line.members),
            f"{trie.seconds:.1f}",
            f"{'≈ ' if plain.extrapolated else ''}{plain.seconds:,.0f}",
            f"{line.times_faster:.1f}",
            f"{trie.tflops:.1f}",
            f"{trie.peak_memory / 1e9:.2f}",
            f"{plain.peak_memory / 1e9:.2f}",
        )
    console.print(table)
    for line in (line for line in lines if line.one_by_one.extrapolated):
        epochs = " to ".join(str(number) for number in dict.fromkeys(line.one_by_one.epochs))
        say(
            f"{line.learner}, {line.size.train:,} images, one by one is extrapolated: {line.one_by_one.runs} of "
            f"{line.members} members were trained, {epochs} of {line.size.epochs} epochs each (--whole: all)"
        )
    for size in dict.fromkeys(line.size for line in lines):
        seconds = {line.learner: line.trie.seconds for line in lines if line.size == size}
        say(
            f"{size.train:,} images, as tries: mntdp-d takes {seconds['mntdp-d'] / seconds['independent']:.2f} times "
            f"the seconds of independent"
        )


def print_profile(profile: gpu_profile.Profile, verbose: bool) -> None:
    kinds = profile.kinds()
    total = sum(kinds.values())
    named = "an evaluation" if profile.work == "evaluation" else "a step"
    table = Table(Column(f"kernels of {named}", no_wrap=True), "ms", "share", "calls", box=None)
    for kind, ms in kinds.items():
        calls = sum(kernel.calls for kernel in profile.kernels if kernel.kind == kind)
        table.add_row(kind, f"{ms:.2f}", f"{ms / total if total else 0:.1%}", f"{calls:.0f}")
    table.add_row("all kernels", f"{total:.2f}", "", f"{sum(kernel.calls for kernel in profile.kernels):.0f}")
    console.print(table)
    say(
        f"{named} of {profile.members} members on {profile.images} images takes {profile.ms:.2f} ms without the "
        f"profiler, {profile.tflops:.1f} TFLOP/s"
        + ("; kernels that ran at the same time are counted each" if total > profile.ms else "")
    )
    if verbose:
        for kernel in [k for k in profile.kernels if k.kind == gpu_profile.OTHER][:SHOWN]:
            say(f"other: {kernel.ms:.3f} ms in {kernel.calls:.1f} calls: {kernel.name}")
