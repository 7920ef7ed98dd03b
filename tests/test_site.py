"""The docs site: its pages are complete, its agents play, metrics are explained, and the check finds what is wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from shoal.algos.algorithm import ALGORITHMS
from shoal.cli.command import verbs
from shoal.native import build as native
from shoal.web import build as web
from tests import browser
from tests.scripts import script
from tests.training import train_tiny

ROOT = Path(__file__).parent.parent
METRICS = (ROOT / "docs/metrics.md").read_text()
GOOD = """<!doctype html><html lang="en"><head><title>t</title>
<meta name="viewport" content="width=device-width"></head>
<body><h1 id="a">one</h1><h2 id="b">two</h2><a href="#b">there</a><img src="p.png" alt="a picture"></body></html>"""


def is_explained(metric: str) -> bool:
    """Whether the page has a metric, or for stats of an env and for agents its general form."""
    general = re.sub(r"_(min|max)$", "", metric)
    return any(f"`{name}`" in METRICS for name in (metric, general, re.sub(r"^episode/.*", "episode/NAME", general)))


def test_the_front_page_and_the_readme_have_the_same_figures():
    claim = r"at (\d+ to \d+) million\s+steps a second and scores (\d+ to \d+) % of all points after ([\d.]+) s"
    figures = re.compile(claim)
    found = [figures.findall((ROOT / name).read_text()) for name in ("README.md", "docs/index.md")]
    assert len(found[0]) == 1
    assert found[0] == found[1]


@pytest.mark.parametrize("algo", ["dqn", "ppo", "pqn"])
def test_every_metric_of_an_algorithm_is_explained(algo):
    missing = [name for name in ALGORITHMS.find(algo).metrics if not is_explained(name)]
    assert not missing, missing


def test_every_metric_that_a_run_writes_is_explained(tmp_path, monkeypatch):
    from shoal.train import train

    monkeypatch.chdir(tmp_path)
    run = train(
        "pendulum",
        train={"total_steps": 4096, "horizon": 32},
        vec={"num_envs": 64},
        eval={"episodes": 2},
        console="off",
    )
    written = {name for record in run.metrics() for name in record}
    assert "rollout/action_std" in written
    assert not [name for name in sorted(written) if not is_explained(name)]


def test_every_command_in_a_code_block_is_one():
    """`shoal VERB` at the start of a line of a sh block."""
    known = set(verbs()) | {verb.split()[0] for verb in verbs()} | {"--help", "--version", "help"}
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for block in re.findall(r"^```(?:sh|bash)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            for verb in re.findall(r"^(?:uvx |pipx run )?shoal (\S+)", block, re.MULTILINE):
                assert verb in known or verb.isupper(), f"{page.name}: shoal {verb}"


def test_pages_are_staged_with_links_that_lead_somewhere(tmp_path, monkeypatch):
    """Without agents and without Zensical: links to pages, pictures and source files, and GitHub's anchors."""
    site = script("site")
    monkeypatch.setattr(site, "PAGES", tmp_path)
    site.Stage(live=False).write()
    pages = {page: page.read_text() for page in tmp_path.rglob("*.md")}
    anchors = {page: re.findall(r"^#.*\{#([^}]+)\}$", text, re.MULTILINE) for page, text in pages.items()}
    assert len(pages) > 80
    for page, text in pages.items():
        assert len(anchors[page]) == len(set(anchors[page])), page
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for target, anchor in re.findall(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)", prose):
            other = (page.parent / target).resolve() if target else page
            assert other.is_file(), f"{page.name}: {target}"
            assert not anchor or other.suffix != ".md" or anchor in anchors[other], f"{page.name}: {target}#{anchor}"
    assert (tmp_path / "source/shoal/native/core/policy.h.txt").is_file()


def test_the_navigation_has_every_page_once():
    site = script("site")
    listed = re.findall(r'= "([\w/.-]+\.md)"', site.settings())
    pages = {str(site.place(page)) for page in (ROOT / "docs").rglob("*.md")}
    pages |= {str(site.place(ROOT / name)) for name in site.BESIDE} - {"about.md"}  # the README: the front page has it
    assert sorted(listed) == sorted(pages)


def test_kept_agents_are_small_and_of_envs_that_exist():
    site = script("site")
    assert {"breakout", "cartpole", "pong", "snake"} <= set(site.agents())
    sizes = [path.stat().st_size for path in site.agents().values()]
    assert max(sizes) < 1_000_000
    assert sum(sizes) < 8_000_000
    for name, path in site.agents().items():
        kept = json.loads(path.read_text())
        assert (ROOT / f"docs/envs/{name}.md").is_file()
        assert f"![{name}](../images/envs/{name}.png)" in (ROOT / f"docs/envs/{name}.md").read_text()
        assert kept["players"]


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium")
def test_a_kept_agent_plays_in_its_page(tmp_path):
    from shoal import registry

    if web.find_zig() is None and web.find_module(native.Source.env(registry.find("cartpole"))) is None:
        pytest.skip("needs zig")
    site = script("site")
    page = tmp_path / "cartpole.html"
    page.write_text(site.live_page(site.agents()["cartpole"]))
    with browser.Browser(690, 500) as shown:
        shown.open(page)
        shown.wait("Number(document.getElementById('step').value) > 60", 30)
        assert not shown.errors
        assert shown.run("document.querySelector('aside').checkVisibility()") is False
        # a pole that nobody balances has fallen by then
        assert shown.run("document.getElementById('episodes').textContent") == "none yet"


BAD = {
    'lang="en"': ("", "no language"),
    "<title>t</title>": ("", "no title"),
    "width=device-width": ("width=600", "no viewport"),
    '<h2 id="b">': ('<h3 id="b">', "skips from 1 to 3"),
    'id="b"': ('id="a"', "not unique"),
    'href="#b"': ('href="#c"', "broken anchor: #c"),
    'href="#b">': ('href="other.html">', "broken link: other.html"),
    ">there<": ("><", "a a without a name"),
    ' alt="a picture"': ("", "without alt text"),
    'src="p.png"': ('src="https://example.org/p.png"', "another host"),
    "<h1": ("<h2", "0 headings of level 1"),
    "</body>": ('<iframe src="good.html"></iframe></body>', "a frame without a title"),
    "<img": ('<input type="text"><img', "a field without a label"),
}


@pytest.mark.parametrize("part", BAD)
def test_the_check_finds(part, tmp_path, monkeypatch):
    check = script("site-check")
    monkeypatch.setattr(check, "SITE", tmp_path)
    (tmp_path / "p.png").write_bytes(b"x")
    page, good = tmp_path / "bad.html", tmp_path / "good.html"
    good.write_text(GOOD)
    assert check.check_page(good) == []
    text, expected = BAD[part]
    assert part in GOOD
    page.write_text(GOOD.replace(part, text))
    assert any(expected in problem for problem in check.check_page(page)), check.check_page(page)


def test_the_check_finds_pages_that_are_too_large(tmp_path, monkeypatch):
    check = script("site-check")
    monkeypatch.setattr(check, "SITE", tmp_path)
    (tmp_path / "p.png").write_bytes(bytes(check.PAGE_BYTES))
    page = tmp_path / "page.html"
    page.write_text(GOOD)
    assert any("with all that it loads" in problem for problem in check.check_page(page))


@pytest.mark.skipif(browser.find() is None, reason="needs Chromium")
def test_the_check_sees_low_contrast_wide_pages_and_hidden_focus(tmp_path):
    check = script("site-check")
    page = tmp_path / "page.html"
    style = "<style>p{color:#aaa;background:#fff} div{width:900px} a:focus{outline:none}</style>"
    links = "".join(f'<a href="#{k}">link {k}</a>' for k in range(12))
    page.write_text(GOOD.replace("</body>", f"{style}<p>grey</p><div>wide</div>{links}</body>"))
    with browser.Browser(390, 844) as shown:
        found = check.look_at(shown, page, 390)
        assert any("px wide" in problem for problem in found)
        assert any("170,170,170 on 255,255,255" in problem for problem in found)
        assert any("focus cannot be seen" in problem for problem in check.walk(shown, 6))


@pytest.mark.slow  # builds the site: 30 s
@pytest.mark.timeout(600)
@pytest.mark.skipif(importlib.util.find_spec("zensical") is None, reason="needs the extra docs")
def test_the_site_is_built_and_has_no_problem():
    for name in ("site", "site-check"):
        done = subprocess.run([sys.executable, str(ROOT / "scripts" / name)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(web.find_zig() is None, reason="zig is not installed: pip install 'shoal[web]'")
def test_the_best_agent_of_a_folder_of_runs_is_kept(tmp_path, monkeypatch, capsys):
    site = script("site")
    monkeypatch.setattr(site, "AGENTS", tmp_path / "agents")
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "agents").mkdir()
    made = [train_tiny("squared", tmp_path / "runs", seed=seed, eval={"episodes": 3}) for seed in (1, 2)]
    best = max(run.summary["eval"]["return"] for run in made)
    assert site.keep_all([str(tmp_path / "runs")], tmp_path, "one core") == 0
    kept = json.loads((tmp_path / "agents/squared.json").read_text())
    assert kept["return"] == round(best, 3)
    assert kept["where"] == "one core"
    assert "bits a weight" in capsys.readouterr().out
    kept["return"] = best + 1.0
    (tmp_path / "agents/squared.json").write_text(json.dumps(kept))
    assert site.keep_all([str(tmp_path / "runs")], tmp_path, "one core") == 0
    assert "has a better return" in capsys.readouterr().err
    assert json.loads((tmp_path / "agents/squared.json").read_text())["return"] == best + 1.0
