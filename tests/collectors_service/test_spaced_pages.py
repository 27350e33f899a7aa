"""Pages that put blanks between their labels read as those without, and as fast."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.collectors.prometheus_text import parse

VALUES = st.text(alphabet='ab} {,="\\\n#', max_size=6)


def quoted(value: str) -> str:
    text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'


@given(
    st.lists(st.tuples(st.sampled_from("mn"), VALUES, VALUES), min_size=1, max_size=6),
    st.sampled_from([", ", " , ", ",  "]),
)
def test_blanks_between_labels_change_nothing(
    samples: list[tuple[str, str, str]], between: str
) -> None:
    def page(comma: str) -> bytes:
        # Each line twice: the second one is read the short way.
        lines = [
            f"{name}{{a={quoted(a)}{comma}b={quoted(b)}}} {number}\n"
            for number, (name, a, b) in enumerate(samples)
        ]
        return ("".join(lines) * 2).encode()

    def read(body: bytes) -> list[tuple[str, dict[str, str], float]]:
        found = parse(body)
        assert not found.rejected
        return [(each.name, each.labels, each.value) for each in found]

    plain, spaced = read(page(",")), read(page(between))
    assert spaced == plain
    assert [value for _, _, value in plain] == [*range(len(samples))] * 2
    assert [labels for _, labels, _ in plain[: len(samples)]] == [
        {"a": a, "b": b} for _, a, b in samples
    ]


def test_a_label_block_of_a_spaced_page_is_split_once() -> None:
    lines = [
        f'{name}{{Port_Number="{port}", Node_GUID="0x{port:016x}"}} {port}'
        for name in ("Effective_BER", "Link_Down", "Symbol_Errors")
        for port in range(144)
    ]
    page = parse(("\n".join(lines) + "\n").encode())
    assert len(page.raw) == 432
    assert len(page.labels) == 144
