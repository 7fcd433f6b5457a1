"""The page's Markdown, in the browser that shows it."""

import random

import pytest

CASES = {
    "footnotes": (
        "a[^1] b\n\n[^1]: the *note*",
        '<p>a<sup class="reference">1</sup> b</p><p class="footnote"><sup class="reference">1</sup>'
        "<span>the <em>note</em></span></p>",
    ),
    "plain": ("Hello\nworld", "<p>Hello<br>world</p>"),
    "emphasis": (
        "*a* **b** ***c*** _d_ __e__ ~~f~~ snake_case_name 2 * 3 * 4",
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> <strong>e</strong> <del>f</del>"
        " snake_case_name 2 * 3 * 4</p>",
    ),
    "emphasis left open": ("**a and *b", "<p>**a and *b</p>"),
    "code": ("`a*b*` ``c`d`` `open", "<p><code>a*b*</code> <code>c`d</code> `open</p>"),
    "escapes": (r"\*a\* \<b> 1 < 2 &amp;", "<p>*a* &lt;b&gt; 1 &lt; 2 &amp;amp;</p>"),
    "headings": (
        "# One\n### Three ###\n#no",
        '<h3 class="level-1">One</h3><h5 class="level-3">Three</h5><p>#no</p>',
    ),
    "lists": (
        "- a\n- b\n  - c\n    more\n- d\n\n1. x\n2. y",
        "<ul><li>a</li><li>b<ul><li>c<br>more</li></ul></li><li>d</li></ul><ol><li>x</li><li>y</li></ol>",
    ),
    "a loose list": ("1. a\n\n   b\n\n2. c", "<ol><li><p>a</p><p>b</p></li><li>c</li></ol>"),
    "a list that goes on": ("3. c\n4. d", '<ol start="3"><li>c</li><li>d</li></ol>'),
    "a list after a line": ("Such as:\n- a\n- b", "<p>Such as:</p><ul><li>a</li><li>b</li></ul>"),
    "tasks": (
        "- [x] a",
        '<ul><li class="task"><span role="img" aria-label="done">☑</span> a</li></ul>',
    ),
    "a quote": ("> a\n> - b\n\nc", "<blockquote><p>a</p><ul><li>b</li></ul></blockquote><p>c</p>"),
    "rules": ("a\n\n---\n\nb", "<p>a</p><hr><p>b</p>"),
    "a table": (
        "| a | b |\n|:--|--:|\n| `x|y` | 1\\|2 |\n| z |",
        '<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
        '<th class="to-left" scope="col">a</th><th class="to-right" scope="col">b</th></tr></thead><tbody>'
        '<tr><td class="to-left"><code>x|y</code></td><td class="to-right">1|2</td></tr>'
        '<tr><td class="to-left">z</td><td class="to-right"></td></tr></tbody></table></div>',
    ),
    "no table": ("a | b\nc | d", "<p>a | b<br>c | d</p>"),
}

LINKS = {
    "[a](https://x.org/b_(c))": "https://x.org/b_(c)",
    "see https://x.org/a_b_c, and": "https://x.org/a_b_c",
    "(https://x.org/)": "https://x.org/",
    "<mailto:a@x.org>": "mailto:a@x.org",
    "![a](http://x.org/p.png)": "http://x.org/p.png",
    "[a](/b) [b](#c) [d]( javascript:e ) [f](vbscript:g) [h](  data:text/html,i) xhttps://j.k": None,
}

DOCUMENT = "\n".join(
    [
        "# Title\n\nA paragraph with **bold** and `code`\nover two lines.\n",
        "1. one\n2. two\n\n   more of two\n   - deep\n3. three\n\nAfter the list.",
        "```python\ndef f(x):\n    '''text\n    over lines'''\n    return x  # why\n\n\nprint(f(1))\n```",
        "- item\n\n  ```js\n  const a = `b\n  c`;\n  ```\n- [ ] item\n> quote\n> more\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |",
        "text\n---\n-5 is not an item\n-- nor this\n```inline``` is not a fence\n~~~\nopen to the end\n* * *",
    ]
)

RENDER = """async ([texts]) => {
  const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
  const { MarkdownView } = await import(`${stamp}js/markdown/view.js`);
  const host = document.createElement("div");
  const view = new MarkdownView(host);
  for (const text of texts) { view.push(text); view.render(); }
  for (const node of host.querySelectorAll("button")) node.remove();
  const links = [...host.querySelectorAll("a")].map(node => node.getAttribute("href"));
  return {html: host.innerHTML, links, text: host.textContent};
}"""


@pytest.fixture(scope="module")
def render(browser, server):
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    yield lambda *texts: page.evaluate(RENDER, [list(texts)])
    context.close()


def test_every_construct_is_rendered(render):
    for name, (source, expected) in CASES.items():
        assert render(source)["html"] == expected, name


def test_links_have_safe_schemes_or_stay_as_written(render):
    for source, address in LINKS.items():
        shown = render(source)
        assert shown["links"] == ([] if address is None else [address]), source
        if address is None:
            assert shown["text"] == source


def test_streamed_text_ends_like_the_complete_one(render):
    whole = render(DOCUMENT)["html"]
    assert '<span class="t-k">return</span>' in whole
    assert render(*DOCUMENT)["html"] == whole  # a character at a time
    for seed in range(20):
        dice = random.Random(seed)
        cuts = sorted(dice.sample(range(1, len(DOCUMENT)), dice.randint(1, 40)))
        pieces = [DOCUMENT[a:b] for a, b in zip([0, *cuts], [*cuts, len(DOCUMENT)], strict=True)]
        assert render(*pieces)["html"] == whole, pieces


def test_every_character_of_a_text_is_shown(render):
    strange = "a\u202eb\U0001f600 \x01 ` * _ [ ] ( ) < > & \\ | ~ # \u2028 end"
    assert render(strange)["text"] == strange


def test_finished_blocks_are_not_rerendered_in_long_answers(render, browser, server):
    # 2,000 blocks in 12,000 pieces: rendering all of them each time would make 12 million nodes.
    page = browser.contexts[0].pages[0]
    made = page.evaluate(
        """async () => {
          const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
          const { MarkdownView } = await import(`${stamp}js/markdown/view.js`);
          const create = document.createElement.bind(document);
          let n = 0;
          document.createElement = (tag) => { n += 1; return create(tag); };
          const host = create("div");
          const view = new MarkdownView(host);
          let first = null;
          const pieces = ["A ", "**bold** ", "word", " and `code`", ".", "\\n\\n"];
          for (let i = 0; i < 2000; i += 1) {
            for (const text of pieces) { view.push(text); view.render(); }
            first ??= host.firstChild;
          }
          view.push("```py\\n"); view.render();
          const before = n;
          for (let i = 0; i < 2000; i += 1) { view.push("x = 1\\n"); view.render(); }
          document.createElement = create;
          const paragraphs = host.querySelectorAll("p").length;
          return {paragraphs, same: first === host.firstChild, n: before, code: n - before};
        }"""
    )
    assert made["paragraphs"] == 2000 and made["same"]
    assert made["n"] < 40_000
    assert made["code"] < 10_000


def test_texts_designed_to_be_slow_are_shown(render):
    n = 20_000
    for text in (
        "[" * n, "*" * n, "*a " * n, "a* " * n, "_a*b" * n, "`" * n, "`a``" * n, "<" * n, "![" * n, "[a](" * n,
        "> " * n, "- " * n, "|" * n + "\n" + "|-" * n, "# " * n, "http://" * n, "~~a" * n, "(" * n, "\\" * n,
        " " * n + "x", "1. " * n, "- a\n" * n, "".join(f"{'  ' * i}- a\n" for i in range(200)),
        "https://a" + ")" * 1900 + "b",
    ):  # fmt: skip
        assert len(render(text)["html"]) > 0


DRAW = """async ([source]) => {
  const stamp = document.querySelector("script[type=module]").src.replace("js/app/main.js", "");
  const { renderMarkdown } = await import(`${stamp}js/markdown/view.js`);
  const host = document.body.appendChild(document.createElement("div"));
  renderMarkdown(host, source);
  [...host.querySelectorAll("button")].find((one) => one.textContent === "Show drawing").click();
  const image = host.querySelector("img");
  await image.decode();
  host.remove();
  return [image.naturalWidth, window.ran ?? false];
}"""


def test_svg_is_shown_as_an_image_whose_script_does_not_run(browser, server):
    page = browser.new_page()
    page.goto(server.url)
    drawing = (
        '<svg xmlns="http://www.w3.org/2000/svg" width="50" height="20"><script>top.ran = true</script>'
        '<image href="https://evil.example/x.png"/></svg>'
    )
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.evaluate(DRAW, [f"```svg\n{drawing}\n```"]) == [50, False]
    assert not any("evil" in url for url in asked if url.startswith("http"))
    page.close()
