"""A region on one page that stands alone, for a post-mortem: what it is, what happened, and how long it took.

Everything on it is a document that the commands print as well, as a table or a drawing. It loads nothing from
elsewhere and runs no script, and whatever people have named stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Final, TypeAlias

from airflow_kcr.api.checkpoint_stats import phases
from airflow_kcr.api.checkpoints import CheckpointSummary
from airflow_kcr.api.ledger import event_to_json
from airflow_kcr.api.reset_views import ResetView
from airflow_kcr.api.views import RegionSummary, span

if TYPE_CHECKING:
    from airflow_kcr.api.lag import LagAt
    from airflow_kcr.api.region import Region

Place: TypeAlias = Callable[[float], float]
"""Where a value is on a drawing."""

WIDTH, HEIGHT, LEFT = 960, 160, 120
ROW: Final = 26

COLORS: Final = ("#1f6feb", "#bf5700", "#2d8a4e", "#8250df", "#c33", "#777")

OF_CHECKPOINT: Final = (
    *("sequence", "timeline", "state", "boundary", "opened_at", "finished_at", "published_at", "undone_by"),
    *("pinned_as", "runs"),
)
OF_RESET: Final = (
    *("id", "state", "cause", "target", "scope", "who", "reason", "asked_at", "finished_at", "timeline", "undone"),
    *("rewound", "replayed", "failure"),
)
"""What the page has of each: the names of its JSON."""

STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 1.5rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
table { border-collapse: collapse; width: 100%; } .scroll { overflow-x: auto; }
th, td { text-align: left; padding: .2rem .7rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
"""


def report(region: Region, last: int = 200) -> str:
    """Return the page, as HTML.

    Args:
        region: as it is now; Kafka is not asked.
        last: how many checkpoints, resets and events it has at most, the newest.
    """
    shown = region.show()
    summary = RegionSummary.shown.document(shown)
    checkpoints, resets = region.checkpoints.list(last=last), region.resets.list(last=last)
    lags, events = region.lag_history(), region.newest_events(last)
    title = f"Region {shown.region}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(shown.liveness.text())}. {escape(str(summary['why']))}</p>",
        _facts(summary),
        _section(
            "Timeline", _timeline(checkpoints, resets), _table([one.to_json() for one in checkpoints], OF_CHECKPOINT)
        ),
        _section(
            "Resets and what they processed again",
            _replays(resets),
            _table([one.to_json() for one in resets], OF_RESET),
        ),
        _section(
            "Checkpoint durations by phase",
            _durations(checkpoints),
            _table([one.to_json() for one in region.checkpoints.stats(timedelta(days=30))]),
        ),
        _section("Lag, in offsets", _lag(lags)),
        _section("Events", _table([event_to_json(one) for one in events])),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{chr(10).join(parts)}\n</main>\n</body>\n</html>\n"
    )


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part) or "<p>There is nothing of it.</p>"
    return f"<h2>{escape(title)}</h2>\n{body}"


def _facts(document: Mapping[str, object]) -> str:
    return _table([{"what": name.replace("_", " "), "is": value} for name, value in document.items()])


def _table(rows: Sequence[Mapping[str, object]], columns: Sequence[str] = ()) -> str:
    if not rows:
        return ""
    names = columns or tuple(rows[0])
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in names)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(_plain(row.get(name)))}</td>' for name in names)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _plain(value: object) -> str:
    match value:
        case None:
            return ""
        case list():
            return ", ".join(map(_plain, value))
        case dict():
            return " ".join(f"{name}={_plain(one)}" for name, one in value.items())
        case int() if not isinstance(value, bool):
            return f"{value:,}"
        case _:
            return str(value)


# Drawings


def _timeline(checkpoints: Sequence[CheckpointSummary], resets: Sequence[ResetView]) -> str:
    """Return the checkpoints on a scale of time, a row for each timeline, with the resets between them."""
    began = [(one, one.attempts[0].started_at) for one in resets if one.attempts]
    dots = [(one.checkpoint, one.checkpoint.finished_at or one.checkpoint.opened_at) for one in checkpoints]
    if not dots:
        return ""
    at = _over_time([moment for _, moment in (*dots, *began)])
    rows = {timeline: ROW * (n + 1) for n, timeline in enumerate(sorted({row.timeline for row, _ in dots}))}
    drawn = [_text(0, y + 4, f"timeline {timeline}") for timeline, y in rows.items()]
    for row, moment in dots:
        color = COLORS[5] if row.undone_by else COLORS[0]
        about = f"checkpoint {row.sequence}, {moment:%Y-%m-%d %H:%M:%S} UTC, {row.state}"
        place = f'cx="{at(moment.timestamp()):.1f}" cy="{rows[row.timeline]}"'
        drawn.append(f'<circle {place} r="4" fill="{color}"><title>{escape(about)}</title></circle>')
    bottom = ROW * (len(rows) + 1)
    for reset, moment in began:
        about = f"reset {reset.reset_id}: {reset.cause} {reset.target or ''}, {moment:%Y-%m-%d %H:%M:%S} UTC"
        line = f'd="M{at(moment.timestamp()):.1f} 8V{bottom - 12}" stroke="{COLORS[4]}" stroke-dasharray="4 3"'
        drawn.append(f'<path {line} stroke-width="2"><title>{escape(about)}</title></path>')
    return _drawing(
        "Checkpoints and resets over time", bottom + 14, [*drawn, *_ends([m for _, m in (*dots, *began)], bottom)]
    )


def _durations(checkpoints: Sequence[CheckpointSummary]) -> str:
    """Return a bar for each checkpoint, of its phases, in the order of the checkpoints."""
    bars = [
        [
            (took.total_seconds(), f"checkpoint {one.checkpoint.sequence}, {phase}: {span(took)}")
            for phase, took in phases(one.checkpoint).items()
        ]
        for one in checkpoints
        if one.checkpoint.finished_at
    ]
    label = "How long each checkpoint took: below, the drain; above, until it was published"
    return _bars(label, bars, lambda seconds: span(timedelta(seconds=seconds)))


def _replays(resets: Sequence[ResetView]) -> str:
    """Return a bar for each reset, of the offsets that it went back over, in the order of the resets."""
    counts = [(one.reset_id, one.counted) for one in resets if one.counted is not None and one.counted.rewound]
    bars = [
        [
            (of.replayed, f"reset {name}: {of.replayed:,} of {of.rewound:,} offsets processed again"),
            (of.rewound - of.replayed, f"reset {name}: {of.rewound - of.replayed:,} of {of.rewound:,} offsets not yet"),
        ]
        for name, of in counts
    ]
    label = "Replay windows of resets: below, what was processed again since; above, what was not yet"
    return _bars(label, bars, lambda offsets: f"{offsets:,.0f}")


def _bars(label: str, bars: Sequence[Sequence[tuple[float, str]]], unit: Callable[[float], str]) -> str:
    """Return a bar of parts for each row, each part with its size and what it is about; `unit` writes a size."""
    if not bars:
        return ""
    most = max(sum(size for size, _ in parts) for parts in bars) or 1.0
    wide, drawn = (WIDTH - LEFT) / len(bars), [_text(0, 14, unit(most))]
    for n, parts in enumerate(bars):
        bottom = float(HEIGHT)
        for color, (size, about) in zip(COLORS, parts, strict=False):
            tall = (HEIGHT - 10) * size / most
            bottom -= tall
            place = f'x="{LEFT + n * wide:.1f}" y="{bottom:.1f}" width="{max(wide - 1, 1):.1f}" height="{tall:.1f}"'
            drawn.append(f'<rect {place} fill="{color}"><title>{escape(about)}</title></rect>')
    return _drawing(label, HEIGHT, drawn)


def _lag(samples: Sequence[LagAt]) -> str:
    """Return a line for each group."""
    known = [one for one in samples if one.lag is not None]
    most = max((one.lag or 0 for one in known), default=0)
    if not known:
        return ""
    at = _over_time([one.at for one in known])
    drawn = [_text(0, 14, f"{most:,}"), *_ends([one.at for one in known], HEIGHT)]
    for n, group in enumerate(sorted({one.group for one in known})):
        color = COLORS[n % len(COLORS)]
        places = [
            (at(one.at.timestamp()), HEIGHT - (HEIGHT - 10) * (one.lag or 0) / (most or 1))
            for one in known
            if one.group == group
        ]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        drawn.append(_text(0, 34 + 16 * n, group, color))
    return _drawing("Lag of each group over time", HEIGHT + 14, drawn)


def _over_time(moments: Iterable[datetime]) -> Place:
    stamps = sorted(moment.timestamp() for moment in moments)
    length = (stamps[-1] - stamps[0]) or 1.0
    return lambda stamp: LEFT + (WIDTH - LEFT - 10) * (stamp - stamps[0]) / length


def _ends(moments: Sequence[datetime], y: float) -> list[str]:
    return [
        _text(LEFT, y + 12, f"{min(moments):%Y-%m-%d %H:%M:%S} UTC"),
        _text(WIDTH, y + 12, f"{max(moments):%Y-%m-%d %H:%M:%S} UTC", anchor="end"),
    ]


def _text(x: float, y: float, text: str, color: str = "", anchor: str = "start") -> str:
    style = f' style="fill: {color}"' if color else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _drawing(label: str, height: float, parts: Iterable[str]) -> str:
    return f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {height + 4}">{"".join(parts)}</svg>'
