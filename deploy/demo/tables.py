"""Plain tables for a terminal."""

from collections.abc import Sequence

from deploy.demo.record import TurnRow

HEADER = ("turn", "prompt tokens", "decision", "pulled tokens", "transfer ms", "TTFT ms")


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned: text to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    is_text = [all(not _is_number(row[column]) for row in rows) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = (
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, is_text, strict=True)
        )
        return "  ".join(cells).rstrip()

    return "\n".join((line(header), "  ".join("-" * width for width in widths), *map(line, rows)))


def cells_of(turn: int, row: TurnRow) -> tuple[str, ...]:
    transfer = "-" if row.transfer_ms is None else f"{row.transfer_ms:.1f}"
    return (
        str(turn),
        str(row.prompt_tokens),
        row.decision,
        str(row.pulled_tokens),
        transfer,
        f"{row.ttft_ms:.0f}",
    )


def side_by_side(with_reuse: Sequence[TurnRow], without: Sequence[TurnRow]) -> str:
    header = ("turn", "prompt tokens", "decision, on", "TTFT ms, on", "decision, off", "TTFT ms, off", "off / on")
    rows = [
        (
            str(turn),
            f"{on.prompt_tokens} / {off.prompt_tokens}",
            on.decision,
            f"{on.ttft_ms:.0f}",
            off.decision,
            f"{off.ttft_ms:.0f}",
            f"{off.ttft_ms / on.ttft_ms:.1f}",
        )
        for turn, (on, off) in enumerate(zip(with_reuse, without, strict=True), start=1)
    ]
    return render(header, rows)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).isdigit()
