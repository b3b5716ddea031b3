"""How much the observe stage costs, as a multiple of plain onnxruntime inference of the same samples.

    python benchmarks/observe_speed.py [model.onnx] [--data folder of images] [--samples 32] [--more 256] [--rounds 5]

Without a model, YOLOX-Nano of the shared data is used where it is there, and the demo detector elsewhere; without data,
random images. Every measurement runs in a fresh process;
plain inference and observation take turns, and the best round of each counts. Plain inference means a session with
default options and as many threads, samples fed one by one; its session is created before the clock starts, while the
time of observation is everything: tracing the graph, the session, the pass and the derived statistics.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DATA = Path(os.environ.get("QUANTRY_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
YOLOX, COCO = DATA / "yolox_nano" / "yolox_nano.onnx", DATA / "coco_val" / "images"


def peak_rss_mb():
    # ru_maxrss may carry the size of the process that spawned this one; VmHWM does not, where the system has it.
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def write_samples(model, data, count, folder):
    """Write preprocessed samples to one file, so that no measurement pays for decoding."""
    import warnings

    import numpy as np

    from quantry.observe import ImageOptions, RandomData, calibration_data
    from quantry.prepare import model_source, prepare
    from quantry.recipe import PrepareOptions

    float_model = prepare(model_source(model), PrepareOptions())
    request = data if data else RandomData(samples=count, high=255.0)
    options = ImageOptions(resize="letterbox", color="BGR") if data else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = calibration_data(request, float_model.inputs, options).take(count)
    (signature,) = float_model.inputs
    written, shape = 0, None
    with (folder / "samples.bin").open("wb") as file:
        while written < count:
            for sample in samples:
                array = sample[signature.name]
                shape = array.shape
                file.write(np.ascontiguousarray(array).tobytes())
                written += 1
                if written == count:
                    break
    (folder / "shape.json").write_text(json.dumps({"name": signature.name, "shape": shape}))


def file_samples(folder, count):
    import numpy as np

    spec = json.loads((folder / "shape.json").read_text())
    size = int(np.prod(spec["shape"]))
    with (folder / "samples.bin").open("rb") as file:
        for _ in range(count):
            yield {spec["name"]: np.fromfile(file, np.float32, size).reshape(spec["shape"])}


def measure_plain(model, folder, count, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    start, cpu = time.perf_counter(), time.process_time()
    for sample in file_samples(folder, count):
        session.run(None, sample)
    return time.perf_counter() - start, time.process_time() - cpu


def measure_observe(model, folder, count, threads):  # noqa: ARG001 - the stage chooses its threads
    import onnxruntime  # noqa: F401 - imported before the clock starts, as for plain inference

    from quantry.observe import CalibrationData, SampleSource, observe
    from quantry.prepare import model_source, prepare
    from quantry.recipe import ObserveOptions, PrepareOptions

    class FileSource(SampleSource):
        size = count

        def read(self):
            return file_samples(folder, count)

    float_model = prepare(model_source(model), PrepareOptions())
    data = CalibrationData(FileSource(), float_model.inputs)
    start, cpu = time.perf_counter(), time.process_time()
    observe(float_model, data, ObserveOptions())
    return time.perf_counter() - start, time.process_time() - cpu


MEASURES = {"plain": measure_plain, "observe": measure_observe}


def in_fresh_process(kind, model, folder, count, threads):
    command = [sys.executable, __file__, str(model), "--child", kind, "--folder", str(folder)]
    command += ["--samples", str(count), "--threads", str(threads)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(output.splitlines()[-1])


def compare(model, folder, args):
    best = {}
    for count in (args.samples, args.more):
        for _ in range(args.rounds if count == args.samples else 1):
            for kind in MEASURES:
                result = in_fresh_process(kind, model, folder, count, args.threads)
                known = best.setdefault((kind, count), result)
                best[kind, count] = {key: min(known[key], result[key]) for key in result}
    print(f"{'':24}{'wall s':>9}{'CPU s':>9}{'peak RSS MB':>13}")
    for (kind, count), result in best.items():
        print(f"{kind + ' ' + str(count):24}{result['wall']:9.3f}{result['cpu']:9.3f}{result['rss']:13.1f}")
    plain, observed = best["plain", args.samples], best["observe", args.samples]
    limit = 1.5 * plain["rss"] + 64
    print(f"wall ratio {observed['wall'] / plain['wall']:.2f} (at most 3.5)")
    print(f"CPU ratio {observed['cpu'] / plain['cpu']:.2f}")
    print(f"peak RSS {observed['rss']:.1f} MB (at most {limit:.1f}), with {args.more} samples", end=" ")
    print(f"{best['observe', args.more]['rss']:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--more", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="threads of plain inference; 0 is one for each core")
    parser.add_argument("--child", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        wall, cpu = MEASURES[args.child](str(args.model), args.folder, args.samples, args.threads)
        print(json.dumps({"wall": wall, "cpu": cpu, "rss": peak_rss_mb()}))
        return
    model, data = args.model, args.data
    if model is None and YOLOX.exists():
        model, data = YOLOX, data or COCO
    elif model is None:
        from quantry.demo import MODEL_PATH

        model = MODEL_PATH
    with tempfile.TemporaryDirectory(prefix="quantry-") as folder:
        write_samples(model, data, max(args.samples, args.more), Path(folder))
        compare(model, Path(folder), args)


if __name__ == "__main__":
    main()
