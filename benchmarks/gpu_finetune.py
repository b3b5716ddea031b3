"""Fast finetuning on a GPU, compared with two CPU cores of the same machine.

    python -m benchmarks.gpu_finetune prepare FOLDER     models and samples of the shared data, packed
    python -m benchmarks.gpu_finetune compare FOLDER     time and output SQNR of every side, a process for each

``prepare`` needs the shared data, ``compare`` only what ``prepare`` wrote.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

MODELS = ("cifar10", "efficientnet_lite0")
ALGORITHMS = ("plain", "gptq", "adaround", "adaquant")
SIDES = ("cpu", "cuda:0")
CALIBRATION, HELD_OUT = 64, 32
GOAL = 5.0


def prepare(folder: Path) -> None:
    """Pack models and samples; few different numbers occur in pictures, so that each is one or two bytes."""
    from benchmarks.accuracy.suites import find_suite

    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        suite = find_suite(name)
        calibration = itertools.islice(suite.calibration(), CALIBRATION)
        samples = list(itertools.chain(calibration, itertools.islice(suite.more_samples(), HELD_OUT)))
        (key,) = samples[0]
        numbers, codes = np.unique(np.stack([sample[key] for sample in samples]), return_inverse=True)
        narrow = codes.astype(np.uint8 if len(numbers) <= 256 else np.uint16)
        np.savez_compressed(folder / f"{name}.npz", numbers=numbers, codes=narrow, key=key)
        shutil.copyfile(suite.model(), folder / f"{name}.onnx")


def stored_samples(folder: Path, name: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return calibration and held-out samples."""
    packed = np.load(folder / f"{name}.npz")
    arrays = packed["numbers"][packed["codes"]]
    samples = [{str(packed["key"]): array} for array in arrays]
    return samples[:CALIBRATION], samples[CALIBRATION:]


def recipe_of(algorithm: str, side: str, run: int) -> Any:
    """Return XINT8 with a step of tuning; each run has a seed of its own, so that it is not found in the store."""
    from quantry.recipe import Gptq, TuneOptions, find_preset

    if algorithm == "plain":
        return find_preset("XINT8").recipe
    if algorithm == "gptq":
        recipe, step = find_preset("XINT8").recipe, Gptq()
    else:
        recipe = find_preset(f"XINT8_{algorithm.upper()}").recipe
        step = replace(recipe.tune.steps[0], device=side)
    return replace(recipe, tune=TuneOptions((replace(step, inference_device=side, seed=step.seed + run),)))


def measure(options: argparse.Namespace) -> None:
    """Quantize some times and print the seconds of the tune stage of each run, and the SQNR of its model."""
    import quantry

    if options.side != "cpu":
        import torch

        # The clock of the other side starts with everything loaded too.
        torch.zeros(1, device=options.side)
    if options.profile:
        import cProfile

        profiler = cProfile.Profile()
    calibration, held_out = stored_samples(options.folder, options.model)
    quantized = Path(options.store) / f"{options.model}.{options.algorithm}.{options.side[:4]}.onnx"
    seconds, ratios = [], []
    for run in range(options.runs):
        if options.profile and run == options.runs - 1:
            profiler.enable()
        recipe = recipe_of(options.algorithm, options.side, run)
        result = quantry.quantize(options.folder / f"{options.model}.onnx", calibration, recipe, store=options.store)
        tuned = [entry.seconds for entry in result.trace.entries if entry.stage == "tune"]
        seconds.append(sum(tuned))
        if options.profile:
            profiler.disable()
        result.save(quantized)
        ratios.append(sqnr(options.folder / f"{options.model}.onnx", quantized, held_out))
    if options.profile:
        import pstats

        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
    print(json.dumps({"seconds": seconds, "sqnr": ratios}), flush=True)


def sqnr(exact: Path, quantized: Path, samples: list[dict[str, Any]]) -> float:
    """Return the signal-to-noise ratio of a quantized model's outputs in dB, on samples that it has not seen."""
    import onnxruntime

    power = noise = 0.0
    sessions = [
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (exact, quantized)
    ]
    for sample in samples:
        wanted, found = (session.run(None, sample)[0].astype(np.float64) for session in sessions)
        power += float((wanted**2).sum())
        noise += float(((wanted - found) ** 2).sum())
    return float(10 * np.log10(power / noise))


def compare(options: argparse.Namespace) -> None:
    """Run every side in a process of its own and print a table."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as store:
        for model, algorithm, side in itertools.product(options.models, options.algorithms, options.sides):
            if algorithm == "plain" and side != "cpu":
                continue
            runs = options.runs if side == "cpu" else options.gpu_runs
            command = [sys.executable, "-m", "benchmarks.gpu_finetune", "measure", str(options.folder), store]
            command += [model, algorithm, side, "--runs", str(1 if algorithm == "plain" else runs)]
            command += ["--profile"] * (options.profile and side != "cpu")
            environment = dict(os.environ)
            if side == "cpu":
                environment |= {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"}
                command = ["taskset", "-c", "0,1", *command]
            started = time.perf_counter()
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stderr[-3000:], flush=True)
                continue
            if options.profile:
                print(done.stdout[:6000], flush=True)
            found[model, algorithm, side] = json.loads(done.stdout.splitlines()[-1])
            print(
                model,
                algorithm,
                side,
                f"{time.perf_counter() - started:.1f} s",
                done.stdout.splitlines()[-1],
                flush=True,
            )
    report(found)


def report(found: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    """Print a table with the fastest run of each side and the mean SQNR of its runs, each with a seed of its own."""
    print("| model | algorithm | 2 cores | GPU | first run there | ratio | goal | SQNR 2 cores | SQNR GPU | plain |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (model, algorithm, side), there in found.items():
        here = found.get((model, algorithm, "cpu"))
        plain = found.get((model, "plain", "cpu"), {"sqnr": [float("nan")]})
        if side == "cpu" or here is None:
            continue
        ratio = min(here["seconds"]) / min(there["seconds"])
        goal = "yes" if ratio >= GOAL else "**NO**"
        print(
            f"| {model} | {algorithm} | {min(here['seconds']):.2f} s | {min(there['seconds']):.2f} s "
            f"| {there['seconds'][0]:.2f} s | {ratio:.1f}x | {goal}: >= {GOAL:g}x "
            f"| {spread(here['sqnr'])} | {spread(there['sqnr'])} | {spread(plain['sqnr'])} |"
        )


def spread(ratios: list[float]) -> str:
    """Return the mean of some ratios and, where there are several, the smallest and the largest."""
    ends = f" ({min(ratios):.2f}..{max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{np.mean(ratios):.2f} dB{ends}"


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    packing = commands.add_parser("prepare")
    packing.set_defaults(run=lambda options: prepare(options.folder))
    comparing = commands.add_parser("compare")
    comparing.add_argument("--models", nargs="+", default=MODELS)
    comparing.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    comparing.add_argument("--sides", nargs="+", default=SIDES)
    comparing.add_argument("--gpu-runs", type=int, default=4)
    comparing.set_defaults(run=compare)
    measuring = commands.add_parser("measure")
    measuring.set_defaults(run=measure)
    for command in (packing, comparing, measuring):
        command.add_argument("folder", type=Path)
    for name in ("store", "model", "algorithm", "side"):
        measuring.add_argument(name)
    for command in (comparing, measuring):
        command.add_argument("--runs", type=int, default=2)
        command.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
