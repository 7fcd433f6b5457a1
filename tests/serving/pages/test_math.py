"""Formulas of an answer, in the browser that shows them."""

import pytest

from tests.serving.pages.test_markdown import RENDER

LOOK = """async ([source]) => {
  const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
  const { renderMarkdown } = await import(`${stamp}js/markdown/view.js`);
  const host = document.createElement("div");
  renderMarkdown(host, source);
  const show = (node) => node.nodeType === 3 ? node.data
    : `${node.localName}(${[...node.childNodes].map(show).join(" ")})`;
  return [...host.querySelectorAll("math")].map((math) => [...math.childNodes].map(show).join(" "));
}"""

FORMULAS = {
    r"\frac{a}{b}": "mfrac(mrow(mi(a)) mrow(mi(b)))",
    r"\frac12": "mfrac(mn(1) mn(2))",
    r"\sqrt[3]{x} \sqrt y": "mroot(mrow(mi(x)) mrow(mn(3))) msqrt(mi(y))",
    "x_1^{2}": "msubsup(mi(x) mn(1) mrow(mn(2)))",
    "f''^2": "msup(mi(f) mrow(mo(′′) mn(2)))",
    r"\sum_{i=1}^n i": "munderover(mo(∑) mrow(mi(i) mo(=) mn(1)) mi(n)) mi(i)",
    r"\int_0^\infty": "msubsup(mo(∫) mn(0) mi(∞))",
    r"\sin^2\theta": "msup(mi(sin) mn(2)) mo(\u2061) mi(θ)",
    r"\lim_{x\to0}": "munder(mo(lim) mrow(mi(x) mo(→) mn(0))) mo(\u2061)",
    r"\alpha\le\Omega": "mi(α) mo(≤) mi(Ω)",
    r"\mathbb{R}\mathcal{L}\mathbf{v}": "mrow(mi(ℝ)) mrow(mi(ℒ)) mrow(mi(𝐯))",
    r"\hat{x}\vec v": "mover(mrow(mi(x)) mo(^)) mover(mi(v) mo(→))",
    r"\text{if } x": "mtext(if\u00a0) mi(x)",
    r"\left(\frac ab\right)": "mrow(mo(() mfrac(mi(a) mi(b)) mo()))",
    r"\begin{bmatrix}1&2\\3&4\end{bmatrix}": (
        "mrow(mo([) mtable(mtr(mtd(mn(1)) mtd(mn(2))) mtr(mtd(mn(3)) mtd(mn(4)))) mo(]))"
    ),
    r"\begin{cases}1&x\\0&y\end{cases}": "mrow(mo({) mtable(mtr(mtd(mn(1)) mtd(mi(x))) mtr(mtd(mn(0)) mtd(mi(y)))))",
    r"a \not= b, 3.14": "mi(a) mo(≠) mi(b) mo(,) mn(3.14)",
}

# Each is shown with every character that was written.
TEXTS = (
    "It costs $5 and $10.",
    "From $5-$10, or US$5 and US$6, or $5 for one and 6$.",
    "$HOME and $PATH, $HOME/$USER",
    r"$\unknown{a}_b c_d$ and \[ \begin{odd} *a* \end{odd} \]",
    r"\(open and \[open and \) and \]",
    r"$\frac{a}$ $a^$ $}{$ $\left( x$ $\begin{matrix} a$",
    "a $ b $ c, $ d$",
)


@pytest.fixture(scope="module")
def evaluate(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    yield page.evaluate
    context.close()


def test_formulas_become_mathml(evaluate):
    for source, expected in FORMULAS.items():
        for text in (f"${source}$", f"$${source}$$", rf"\({source}\)", rf"\[{source}\]", f"so\n$$\n{source}\n$$\nis"):
            assert evaluate(LOOK, [text]) == [expected], text


def test_non_formula_keeps_every_character(evaluate):
    for text in TEXTS:
        shown = evaluate(RENDER, [[text]])
        assert shown["text"] == text
        assert "<math" not in shown["html"] and "<em>" not in shown["html"], text


def test_multiline_formula_is_no_list_and_can_be_streamed(evaluate):
    text = (
        "We have\n\\[\na\n- b\n+ c\n\\]\nand $x$,\n\n$$\n\\begin{aligned}\na &= b \\\\\n&= c\n\\end{aligned}\n$$\n\nend"
    )
    whole = evaluate(RENDER, [[text]])
    assert whole["html"].count("<math") == 3 and "<li>" not in whole["html"]
    assert evaluate(RENDER, [list(text)])["html"] == whole["html"]


def test_formulas_designed_to_be_slow_or_deep_are_shown(evaluate):
    n = 20_000
    for text in (
        "$" * n, "$a" * n, "\\(" * n, "\\[a" * n, "$$a" * n, f"${'{' * 2000}{'}' * 2000}$", f"${'{' * 30}a{'}' * 30}$",
        f"${'a^{' * 1000}", f"$$\n{chr(92)}frac{'{' * n}\n$$", "$\\sqrt" * n, f"$${'x_1 ' * 1200}$$", "\\" * n + "(",
    ):  # fmt: skip
        assert len(evaluate(RENDER, [[text]])["html"]) > 0


def test_run_of_asterisks_is_text_and_nests_nothing(evaluate):
    stars = "*" * 40_000
    shown = evaluate(RENDER, [[f"{stars}a{stars}"]])
    assert shown["text"] == f"{stars}a{stars}"
    assert "<strong>" not in shown["html"]
    assert "<em><strong>a</strong></em>" in evaluate(RENDER, [["***a***"]])["html"]


GROWN = """async () => {
  const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
  const { renderMarkdown } = await import(`${stamp}js/markdown/view.js`);
  const host = document.body.appendChild(document.createElement("div"));
  host.className = "markdown";
  renderMarkdown(host, String.raw`$$\\begin{bmatrix}1\\\\2\\\\3\\\\4\\end{bmatrix}$$`);
  await document.fonts.load('16px "Woolly Math"', "[");
  const heights = ["mo", "mtable"].map((name) => host.querySelector(name).getBoundingClientRect().height);
  host.remove();
  return [document.fonts.check('16px "Woolly Math"', "["), ...heights];
}"""


def test_brackets_are_stretched_with_the_bundled_font(evaluate):
    is_there, bracket, rows = evaluate(GROWN)
    assert is_there and bracket > 0.8 * rows
