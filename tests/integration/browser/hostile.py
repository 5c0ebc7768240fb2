"""Texts that would do harm if a page took them for more than text."""

from __future__ import annotations

MARKUP = (
    "<script>window.harmed='script'</script><img src=x onerror=\"window.harmed='image'\"><svg onload=\"window.harmed='svg'\">"
    "</style></textarea></title><iframe srcdoc=\"<script>parent.harmed='frame'</script>\"></iframe>"
    "<a href=\"javascript:window.harmed='link'\">here</a> [there](javascript:window.harmed='mark') ${window.harmed='template'} {{harmed}}"
)
OVERRIDE = "abc\u202egnp.exe"
"""Reads `abcexe.png` where the direction is believed."""
LARGE = MARKUP + "x" * 1_000_000

WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
    window.violations.push(event.violatedDirective + " " + event.blockedURI);
    document.documentElement.dataset.violations = window.violations.length;
});
"""
"""Run before a page's own scripts: notes what its content security policy had to stop."""

HARM = """() => ({
    harmed: window.harmed ?? null,
    violations: window.violations,
    elements: document.querySelectorAll("#app :is(script, iframe, style, img[src='x'], [onload], [onerror], a[href^='javascript'])").length,
})"""
"""What came of it all."""
UNHARMED: dict[str, object] = {"harmed": None, "violations": [], "elements": 0}
