"""The table of the sweep, and whether its targets are met."""

from typing import Any

from benchmarks.markdown import table
from benchmarks.zoo.architectures import ARCHITECTURES
from benchmarks.zoo.measurement import RECIPES
from benchmarks.zoo.onnx_results import Entry

_BEHIND = 1.0
"""How many dB the recommended recipe for CPUs may lie below onnxruntime's quantizer."""

_NOISE = 0.1
"""Differences below this many dB are no differences: results of a few samples."""

_TORCH_SHARE = 0.95
WANTED = 100
_FIXED = {"built", "exported", "onnxruntime", "torch", "old exporter", *RECIPES}
_HEADINGS = (
    *("architecture", "million weights", "onnxruntime", "RECOMMENDED-CPU", "XINT8", "RECOMMENDED-NPU"),
    *("another preset", "torch XINT8", "torch and its export agree", "old exporter", "s"),
)

Entries = dict[str, Entry]


def zoo_table(entries: Entries) -> str:
    """Return one line for each architecture."""
    return table(_HEADINGS, [_line(name, entries[name]) for name in sorted(entries)])


def _line(name: str, entry: Entry) -> list[str]:
    parameters = entry.get("built", {}).get("parameters")
    another = next(((key, value) for key, value in entry.items() if _is_preset(key, value)), None)
    return [
        name,
        "" if parameters is None else f"{parameters / 1e6:.2f}",
        *(_cell(entry.get(key)) for key in ("onnxruntime", "RECOMMENDED-CPU", "XINT8", "RECOMMENDED-NPU")),
        f"{another[0]} {_cell(another[1])}" if another else "",
        _cell(entry.get("torch")),
        _agreement(entry.get("torch", {})),
        _cell(entry.get("old exporter")),
        f"{entry['seconds']:.0f}" + (f" ({entry['stopped']})" if "stopped" in entry else ""),
    ]


def _is_preset(key: str, value: Any) -> bool:
    return isinstance(value, dict) and key not in _FIXED


def _cell(found: Entry | None) -> str:
    if found is None:
        return ""
    if found["state"] != "ok":
        return str(found["state"])
    return f"{found['dB']:.1f}" if "dB" in found else "runs"


def _agreement(found: Entry) -> str:
    if found.get("state") != "ok":
        return ""
    if found["exact"]:
        return "exact"
    if not found["differing"]:
        return f"in all values; not proven for {', '.join(found['except'])}"
    return f"differ by {found['largest']:.2g}; exact except for {', '.join(found['except']) or 'nothing'}"


def target_lines(entries: Entries, wanted: int = WANTED) -> list[str]:
    """Return one line for each target, met or not, and where not; ``wanted`` is how many there must be."""
    exported = {name: entry for name, entry in entries.items() if entry.get("exported", {}).get("state") == "ok"}
    tried = {name: entry["torch"] for name, entry in exported.items() if "torch" in entry}
    torch_ok = [name for name, found in tried.items() if found["state"] == "ok"]
    share = len(torch_ok) / max(1, len(tried))
    missing = [name for name in tried if name not in torch_ok]
    enough = "met" if len(entries) >= wanted else "not met"
    return [
        f"{enough}: {len(entries)} of {len(ARCHITECTURES)} architectures measured (at least {wanted} wanted)",
        f"{len(exported)} of them exported by `torch.onnx.export(dynamo=True)`",
        _target("raw exceptions", _places(entries, "raised")),
        _target("results that onnxruntime does not load or run", _places(entries, "invalid")),
        _target("exported architectures that a recipe refuses", _places(exported, "refused")),
        _target("architectures stopped at a limit", [name for name, entry in entries.items() if "stopped" in entry]),
        _target(
            f"RECOMMENDED-CPU more than {_BEHIND:.0f} dB below onnxruntime's quantizer",
            _behind(entries, "RECOMMENDED-CPU", "onnxruntime", _BEHIND),
        ),
        _target("RECOMMENDED-NPU below XINT8", _behind(entries, "RECOMMENDED-NPU", "XINT8", _NOISE)),
        f"{'met' if share >= _TORCH_SHARE else 'not met'}: the torch path handles {len(torch_ok)} of {len(tried)} "
        f"exported architectures that reached it ({100 * share:.0f} %, at least 95 % wanted)" + _listed(missing),
        f"onnxruntime's quantizer fails on {len(_failed_oracle(exported))}" + _listed(_failed_oracle(exported)),
    ]


def _target(what: str, found: list[str]) -> str:
    return f"{'not met' if found else 'met'}: {len(found)} {what}" + _listed(found)


def _listed(found: list[str]) -> str:
    return f": {'; '.join(found)}" if found else ""


def _places(entries: Entries, state: str) -> list[str]:
    return [
        f"{name} {key}: {found.get('why', '')}"
        for name, entry in entries.items()
        for key, found in entry.items()
        if isinstance(found, dict) and key not in ("built", "exported", "onnxruntime") and found["state"] == state
    ]


def _behind(entries: Entries, ours: str, theirs: str, margin: float) -> list[str]:
    lines = []
    for name, entry in entries.items():
        values = [entry.get(key, {}).get("dB") for key in (ours, theirs)]
        if None not in values and values[0] < values[1] - margin:
            lines.append(f"{name} {values[0]:.1f} against {values[1]:.1f}")
    return lines


def _failed_oracle(entries: Entries) -> list[str]:
    return [name for name, entry in entries.items() if entry.get("onnxruntime", {}).get("state") not in ("ok", None)]
