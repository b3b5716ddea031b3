"""A chart of the scores of a search, in the order of its trials."""

from quantry.autosearch import SearchResult, Trial

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 960, 270, 60, 22, 24


def trial_chart(result: SearchResult) -> str:
    """Return an SVG with one dot per trial, and lines for the float model's score and the tolerance."""
    scored = [trial for trial in result.trials if trial.score is not None]
    if not scored:
        return ""
    levels = {"float": result.reference.value}
    if result.tolerance is not None:
        sign = -1 if result.direction == "maximize" else 1
        levels["tolerance"] = result.reference.value + sign * result.tolerance
    scores = [trial.score for trial in scored if trial.score is not None]
    low, high = min(*scores, *levels.values()), max(*scores, *levels.values())
    span = (high - low) or 1.0

    def across(number: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * (number + 0.5) / len(result.trials)

    def down(value: float) -> float:
        return _TOP + (_HEIGHT - _BOTTOM - _TOP) * (1 - (value - low) / span)

    lines = "".join(
        f"<line class=end x1={_LEFT} x2={_WIDTH} y1={down(value):.1f} y2={down(value):.1f} />"
        f"<text class=axis x={_WIDTH} y={down(value) - 4:.1f} text-anchor=end>{name} {value:.4g}</text>"
        for name, value in levels.items()
    )
    ends = "".join(
        f"<text class=axis x={_LEFT - 6} y={down(value) + 4:.1f} text-anchor=end>{value:.4g}</text>"
        for value in (low, high)
    )
    dots = "".join(_dot(trial, across(trial.number), down(trial.score or 0.0), result) for trial in scored)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="score of every trial">{ends}{lines}{dots}'
        f"<text class=axis x={_LEFT} y={_HEIGHT - 6}>first trial</text>"
        f"<text class=axis x={_WIDTH} y={_HEIGHT - 6} text-anchor=end>last</text></svg>"
    )


def _dot(trial: Trial, x: float, y: float, result: SearchResult) -> str:
    kind = "pruned" if trial.state == "pruned" else "accepted" if trial.accepted else "trial"
    best = result.best is not None and trial.number == result.best.number
    radius = 7 if best else 4
    label = f"trial {trial.number}: {trial.score:.5g}{', best' if best else ''}"
    return f"<circle class={kind} cx={x:.1f} cy={y:.1f} r={radius}><title>{label}</title></circle>"
