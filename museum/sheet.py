"""A sheet of SVG: texts, strokes and boxes, with the colours of ``STYLE``."""

from __future__ import annotations

from typing import Final
from xml.etree.ElementTree import Element, SubElement, indent, tostring

STYLE: Final = """
.museum{--ground:#ffffff;--ink:#1d2127;--muted:#565d68;--lane:#c6ccd5;--hold:#3d78d8;--red:#b3261e;
--hatch:#3a3f47;--edge:#d5d9e0}
@media (prefers-color-scheme:dark){.museum{--ground:#15181d;--ink:#e8eaed;--muted:#a9b0bb;
--lane:#474e59;--hold:#4f8df0;--red:#ff8a80;--hatch:#d3d7de;--edge:#363c45}}
.museum text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.museum .muted{fill:var(--muted)}.museum .alarm{fill:var(--red);font-weight:600}
.museum .bold{font-weight:600}
.museum .ground{fill:var(--ground);stroke:var(--edge)}.museum .lane{stroke:var(--lane)}
.museum .hold{fill:var(--hold)}.museum .two{fill:var(--red)}
.museum .asks{stroke:var(--hold);stroke-width:2;stroke-dasharray:2 4}
.museum .hatch{stroke:var(--hatch);stroke-width:2}.museum .stop{stroke:var(--hatch)}
.museum .dot{fill:var(--ink);stroke:var(--ground)}
.museum .wrong{fill:var(--ground);stroke:var(--red);stroke-width:3}
.museum .cross{stroke:var(--ink);stroke-width:3;stroke-linecap:round}
.museum .cut{stroke:var(--ground);stroke-width:7}.museum .rule{stroke:var(--edge)}
"""


class Sheet:
    """What is drawn so far.

    Attributes:
        root: the element of the picture.
        hatch: the fill of a hatched box.
    """

    def __init__(self, slug: str, title: str, desc: str) -> None:
        self.root = Element("svg", {
            "xmlns": "http://www.w3.org/2000/svg", "class": "museum", "role": "img",
            "aria-labelledby": f"{slug}-title {slug}-desc",
        })  # fmt: skip
        for tag, words in (("title", title), ("desc", desc)):
            SubElement(self.root, tag, {"id": f"{slug}-{tag}"}).text = words
        SubElement(self.root, "style").text = STYLE
        self.hatch = f"fill:url(#{slug}-hatch)"
        pattern = SubElement(SubElement(self.root, "defs"), "pattern", {
            "id": f"{slug}-hatch", "width": "6", "height": "6", "patternUnits": "userSpaceOnUse",
            "patternTransform": "rotate(45)",
        })  # fmt: skip
        SubElement(pattern, "line", {"class": "hatch", "y2": "6"})
        self._ground = SubElement(self.root, "rect", {"class": "ground", "rx": "8"})

    def group(self) -> Element:
        """Return a group: what is put into it later lies under what is drawn from now on."""
        return SubElement(self.root, "g")

    def text(self, at: complex, words: str, size: int, kind: str = "", anchor: str = "") -> None:
        """Write a line of text."""
        how = {"x": f"{at.real:g}", "y": f"{at.imag:g}", "font-size": str(size)}
        how |= {"class": kind} if kind else {}
        how |= {"text-anchor": anchor} if anchor else {}
        SubElement(self.root, "text", how).text = words

    def stroke(self, kind: str, start: complex, end: complex, into: Element | None = None) -> None:
        """Draw a straight stroke."""
        ends = {"x1": start.real, "y1": start.imag, "x2": end.real, "y2": end.imag}
        how = {"class": kind} | {key: f"{value:g}" for key, value in ends.items()}
        SubElement(self.root if into is None else into, "line", how)

    def cross(self, at: complex, size: float = 6) -> None:
        """Draw a cross."""
        for slope in (1, -1):
            self.stroke("cross", at - complex(size, slope * size), at + complex(size, slope * size))

    def dot(self, at: complex, radius: float, kind: str = "dot") -> None:
        """Draw a dot."""
        place = {"cx": f"{at.real:g}", "cy": f"{at.imag:g}", "r": f"{radius:g}"}
        SubElement(self.root, "circle", {"class": kind, **place})

    def box(
        self,
        kind: str,
        at: complex,
        size: complex,
        into: Element | None = None,
        *,
        hatched: bool = False,
    ) -> None:
        """Draw a box whose upper left corner is ``at``."""
        sides = {"x": at.real, "y": at.imag, "width": size.real, "height": size.imag}
        how = {"class": kind, "rx": "3"} | {key: f"{value:g}" for key, value in sides.items()}
        how |= {"style": self.hatch} if hatched else {}
        SubElement(self.root if into is None else into, "rect", how)

    def kinds(self) -> set[str]:
        """Return the classes of all that is drawn."""
        return {kind for each in self.root.iter() for kind in each.get("class", "").split()}

    def svg(self, width: int, height: int) -> str:
        """Return it as text, so large."""
        for element, inset in ((self.root, 0), (self._ground, 1)):
            element.attrib |= {"width": str(width - inset), "height": str(height - inset)}
        self._ground.attrib |= {"x": "0.5", "y": "0.5"}
        self.root.set("viewBox", f"0 0 {width} {height}")
        indent(self.root)
        return tostring(self.root, encoding="unicode") + "\n"
