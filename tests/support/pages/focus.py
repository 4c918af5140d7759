"""Whether a page can be used by keyboard alone, and shows where the focus is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .faults import Fault

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST: Final = 400  # presses of Tab until all of a page was reached
# Each element that Tab should reach gets a number, and its looks without the focus are kept.
PREPARE: Final = """() => {
  const looks = (element) => {
    const style = getComputedStyle(element);
    const {outlineStyle, outlineWidth, outlineColor} = style;
    const outline = outlineStyle === "none" ? "" : `${outlineWidth} ${outlineColor}`;
    return JSON.stringify([outline, style.boxShadow, style.border, style.backgroundColor,
                           style.textDecorationLine]);
  };
  document.activeElement.blur();
  const all = Array.from(document.querySelectorAll(
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]"));
  const reachable = all.filter((each) => !each.disabled && each.tabIndex >= 0
                                         && each.checkVisibility({visibilityProperty: true}));
  window.auditedFocus = {looks, reachable, before: reachable.map(looks), reached: []};
  return reachable.length;
}"""
# After a press of Tab: what has the focus now; false when it has left the page or began anew. Once
# nothing may have it: a live page has just taken the element away, and Tab goes on from its place.
NOTE: Final = """() => {
  const {looks, reachable, before, reached} = window.auditedFocus;
  const element = document.activeElement;
  if (element === document.body) {
    window.auditedFocus.nowhere = (window.auditedFocus.nowhere ?? 0) + 1;
    return window.auditedFocus.nowhere < 2;
  }
  window.auditedFocus.nowhere = 0;
  if (reached.some((each) => each.element === element)) {
    return false;
  }
  const index = reachable.indexOf(element);
  reached.push({element, index, same: index >= 0 && looks(element) === before[index]});
  return true;
}"""
TELL: Final = """() => {
  const {reachable, reached} = window.auditedFocus;
  const tell = (element) => `${element.localName} ${element.id || element.className} `
                            + `"${(element.innerText || element.value || "").slice(0, 40)}"`;
  // A live page may have taken an element away before Tab came to it, or put another in its place,
  // and that again: Tab has reached one of them, or none stands there.
  const has = reached.map((each) => each.element);
  const same = (old) => (each) => each.localName === old.localName
                                  && each.textContent.trim() === old.textContent.trim();
  const missed = reachable.filter((old) => old.isConnected ? !has.includes(old)
    : !has.some(same(old)) && Array.from(document.querySelectorAll(old.localName)).some(same(old)));
  return {
    missed: missed.map(tell),
    unseen: reached.filter((each) => each.same).map((each) => tell(each.element)),
  };
}"""


def focus_faults(page: Page) -> list[Fault]:
    """Return what Tab does not reach on the page, and what looks as it did without the focus."""
    page.evaluate("document.activeElement.blur()")
    page.evaluate(PREPARE)
    for _ in range(MOST):
        page.keyboard.press("Tab")
        if not page.evaluate(NOTE):
            break
    told: dict[str, Any] = page.evaluate(TELL)
    return [
        *(Fault("not-by-keyboard", each, "Tab does not reach it") for each in told["missed"]),
        *(Fault("focus-unseen", each, "it looks as without the focus") for each in told["unseen"]),
    ]
