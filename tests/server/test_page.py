"""The chat page in a real browser, headless, against scripted answers. Needs Chromium, its driver and selenium: the slow tier installs them."""
import json
import re
import shutil
import time

import pytest
import requests
from conftest import WEATHER, Server, call_text

if not shutil.which("chromium") or not shutil.which("chromedriver"):
    pytest.exit("SKIPPED: no chromium and chromedriver here: the chat page goes untested", returncode=77)
try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    pytest.exit("SKIPPED: this Python has no selenium: the chat page goes untested", returncode=77)


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,800", "--lang=en"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.binary_location = shutil.which("chromium")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(20)
    yield driver
    driver.quit()


class Page:
    def __init__(self, browser, server):
        self.b, self.s = browser, server
        browser.get(server.url + "/health")  # of this origin, to clear what an earlier test left
        browser.execute_script("localStorage.clear(); sessionStorage.clear();")
        browser.get_log("performance"), browser.get_log("browser")
        self.open()

    def open(self):
        self.b.get(self.s.url + "/")

    def find(self, css):
        return self.b.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        return self.b.execute_script("return [...document.querySelectorAll(arguments[0])].map(e => e.innerText.trim())", css)

    def wait(self, condition, seconds=15):
        end = time.monotonic() + seconds
        while not (got := condition()):
            assert time.monotonic() < end, (self.text("main"), self.b.get_log("browser"))
            time.sleep(0.02)
        return got

    def say(self, text, *keys):
        self.find("#input")[0].send_keys(text, *(keys or [Keys.ENTER]))

    def idle(self):
        self.wait(lambda: self.find("#send")[0].is_displayed())

    def ask(self, *items, text="Hello "):
        self.say(text + self.s.script(list(items)))
        self.wait(lambda: self.find("article.assistant"))

    def settle(self, **fields):
        self.find("#open-settings")[0].click()
        for name, value in fields.items():
            e = self.find("#" + name)[0]
            if e.tag_name == "select":
                e.find_element(By.CSS_SELECTOR, f"option[value='{value}']").click()
            else:
                e.clear()
                self.b.execute_script("arguments[0].value = arguments[1]", e, str(value))
        self.find("#save-settings")[0].click()

    def requests(self):
        """Every address that the page asked for since it was last looked at."""
        sent = [json.loads(entry["message"])["message"] for entry in self.b.get_log("performance")]
        return [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]

    def complaints(self):
        return [entry for entry in self.b.get_log("browser") if entry["level"] == "SEVERE"]


@pytest.fixture
def page(browser, server):
    p = Page(browser, server)
    yield p
    outside = [url for url in p.requests() if not url.startswith((server.url + "/", "data:"))]
    assert not outside, outside


def test_headers_and_size(server):
    first, second = requests.get(server.url + "/"), requests.get(server.url + "/")
    policy = first.headers["Content-Security-Policy"]
    nonce = re.search(r"script-src 'nonce-([A-Za-z0-9]{24})'", policy)[1]
    assert first.text.count(f'nonce="{nonce}"') == 2 and "@nonce@" not in first.text and nonce not in second.text
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy and first.headers["Referrer-Policy"] == "no-referrer"
    assert first.headers["Content-Type"] == "text/html; charset=utf-8" and len(first.content) < 64 << 10
    assert not re.search(r"(src|href)=[\"'](?!data:)", first.text) and " style=" not in first.text and "innerHTML" not in first.text and not re.search(r"\son\w+=[\"']", first.text)


def test_loads(page, server):
    page.wait(lambda: "test-model" in page.text("#model")[0])
    assert page.b.title == "calla" and page.find("#empty")[0].is_displayed() and not page.find("#stop")[0].is_displayed()
    assert page.b.switch_to.active_element.get_attribute("id") == "input" and not page.complaints()
    unnamed = page.b.execute_script("return [...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length).map(e => e.id)")
    assert not unnamed and page.b.execute_script("return document.documentElement.lang") == "en"


def test_sends_streams_and_counts(page):
    page.ask({"every_ms": 40}, {"text": "</think>" + "one two three four five six seven eight nine ten " * 3})
    page.wait(lambda: page.text("article.assistant .text"))
    lengths = set()
    page.wait(lambda: lengths.add(len("".join(page.text("article.assistant .text")))) or page.find("#send")[0].is_displayed())
    assert len(lengths) > 4  # it grew before the eyes
    assert page.text("article.user .text")[0].startswith("Hello ") and page.text("article.assistant .text p") == [("one two three four five six seven eight nine ten " * 3).strip()]
    note = page.text(".note")[0]
    found = re.fullmatch(r"(\d+) tokens · ([\d.]+) tokens/s · first after [\d.]+ s", note)
    assert found and 30 <= int(found[1]) <= 40 and 3 < float(found[2]) < 30, note


def test_keys(page, server):
    page.say("a", Keys.SHIFT + Keys.ENTER + Keys.NULL, "b")
    assert page.find("#input")[0].get_attribute("value") == "a\nb" and not page.find("article")
    page.say(server.script([{"text": "</think>yes"}]))
    page.wait(lambda: page.text("article.assistant .text") == ["yes"])
    assert page.find("#input")[0].get_attribute("value") == "" and page.text("article.user .text")[0].startswith("a\nb")
    page.say("   ")
    assert len(page.find("article")) == 2


@pytest.mark.parametrize("how", ["escape", "button"])
def test_stops(page, server, how):
    mark = server.script([{"every_ms": 30}, {"text": "</think>" + "on and on " * 500}])
    page.say(mark)
    page.wait(lambda: "on and" in "".join(page.text("article.assistant")))
    if how == "escape":
        page.say("", Keys.ESCAPE)
    else:
        page.find("#stop")[0].click()
    page.idle()
    server.wait(lambda: server.ended(mark))
    assert server.ended(mark)[0]["finish"] == 3 and page.text(".note") == ["stopped"] and not page.find("article .error")
    page.say(server.script([{"text": "</think>fine"}]))
    page.wait(lambda: page.text("article.assistant .text")[-1:] == ["fine"])


def test_reasoning_is_folded(page):
    page.ask({"text": "Let me think.\nHidden."}, {"text": "</think>The answer."})
    page.idle()
    summary = page.find("details.think summary")[0]
    assert re.fullmatch(r"Thought for [\d.]+ s", summary.text) and not page.find("details.think div")[0].is_displayed()
    assert page.text("article.assistant .text") == ["The answer."]
    summary.click()
    assert page.text("details.think div") == ["Let me think.\nHidden."]


def test_tool_call_and_result(page, server):
    page.settle(tools=json.dumps([WEATHER]), thinking="off")
    mark = server.script([{"text": call_text("get_weather", city="Paris", days="3")}], [{"text": "Sunny."}])
    page.say("Weather? " + mark)
    page.wait(lambda: page.find(".call textarea"))
    assert page.text(".call b") == ["get_weather"] and json.loads(page.text(".call pre")[0]) == {"city": "Paris", "days": 3}
    page.find(".call textarea")[0].send_keys('{"sky": "blue"}')
    next(b for b in page.find("article button") if b.text == "Send result").click()
    page.wait(lambda: page.text("article.assistant .text") == ["Sunny."])
    prompt = server.submitted()[-1]["prompt"]
    assert '{"sky": "blue"}' in prompt and "<tool_response>" in prompt and "get_weather" in prompt


def test_settings_reach_the_request(page, server):
    page.settle(temperature="0.65", top_p="0.9", max_tokens="7", thinking="off", system="Be a pirate.", tools="")
    page.say(server.script([{"text": "one two three four five six seven eight nine"}]))
    page.idle()
    page.wait(lambda: page.text(".note"))
    got = server.submitted()[-1]
    assert (got["temperature"], got["top_p"], got["max_tokens"]) == (0.65, 0.9, 7) and "Be a pirate." in got["prompt"] and got["prompt"].rstrip().endswith("</think>")
    assert "cut by the limit" in page.text(".note")[0]
    page.open()
    page.find("#open-settings")[0].click()
    assert page.find("#temperature")[0].get_attribute("value") == "0.65" and page.find("#system")[0].get_attribute("value") == "Be a pirate."
    page.b.execute_script("document.getElementById('tools').value = '{not json'")
    page.find("#save-settings")[0].click()
    assert page.find("#settings")[0].is_displayed() and "Tools" in page.text("#settings-error")[0]
    page.find("#cancel-settings")[0].click()
    page.settle(temperature="", top_p="", max_tokens="", thinking="", system="")


def test_conversation_is_kept_and_ended(page, server):
    page.ask({"text": "</think>first answer"})
    page.wait(lambda: page.text("article.assistant .text") == ["first answer"])
    page.idle()
    page.open()
    assert page.text("article.assistant .text") == ["first answer"]
    page.say(server.script([{"text": "</think>second answer"}]))
    page.wait(lambda: page.text("article.assistant .text") == ["first answer", "second answer"])
    assert "first answer" in server.submitted()[-1]["prompt"]
    page.find("#new")[0].click()
    assert not page.find("article") and page.find("#empty")[0].is_displayed()
    page.open()
    assert not page.find("article")


ATTACKS = ["<script>window.hit=1</script>", "<img src=x onerror='window.hit=1'>", "<svg onload=window.hit=1>", "[x](javascript:window.hit=1)", "![p](http://evil.example/a.png)",
           "<iframe src='http://evil.example'></iframe>", "**<b onclick=window.hit=1>b</b>**", "`<u>u</u>`", "<a href='javascript:window.hit=1'>a</a>", "&lt;script&gt;", "<style>*{display:none}</style>",
           "[y](https://evil.example/?q=\"onmouseover=window.hit=1)", "<link rel=stylesheet href=http://evil.example/x.css>", "```html\n<script>window.hit=1</script>\n```"]


@pytest.mark.parametrize("where", ["content", "reasoning", "user", "call"])
def test_markup_stays_text(page, server, where):
    text = "\n\n".join(ATTACKS)
    if where == "call":
        page.settle(tools=json.dumps([WEATHER]), thinking="off")
        page.ask({"text": call_text("get_weather", city=text)})
        page.wait(lambda: page.find(".call"))
    elif where == "user":
        page.b.execute_script("arguments[0].value = arguments[1]", page.find("#input")[0], text + page.s.script([{"text": "</think>ok"}]))
        page.say("")
        page.wait(lambda: page.text("article.assistant .text") == ["ok"])
    else:
        page.ask({"text": text + "</think>" if where == "reasoning" else "</think>" + text})
    page.idle()
    if where == "reasoning":
        page.find("details.think summary")[0].click()
    for foreign in ("script", "img", "svg", "iframe", "style", "link", "u", "b:not(.call b)"):
        assert not page.find(f"article {foreign}"), foreign
    links = [a.get_attribute("href") for a in page.find("article a")]
    assert all(link.startswith(("http://evil.example/", "https://evil.example/")) for link in links)
    shown = "\n".join(page.text("article"))
    for attack in ("<img src=x onerror=", "<svg onload=", "<script>window.hit=1</script>", "<style>*{display:none}</style>"):
        assert attack in shown, attack
    assert page.b.execute_script("return window.hit") is None and page.b.execute_script("return [...document.querySelectorAll('article *')].every(e => ![...e.attributes].some(a => a.name.startsWith('on')))")
    page.settle(tools="", thinking="")


def test_markdown(page):
    text = "# Title\n\nSome *soft* and **strong** words, `a*b*c`, 2*3*4 and snake_case_name.\n\n- one\n- two\n\n3. three\n4. four\n\n> said\n\n```python\ndef f(x):\n    return x < 1 & 2\n```\n\n[calla](https://example.org/x)"
    page.ask({"text": "</think>" + text})
    page.idle()
    a = "article.assistant .text "
    assert page.text(a + "h1") == ["Title"] and page.text(a + "em") == ["soft"] and page.text(a + "strong") == ["strong"] and page.text(a + "p code") == ["a*b*c"]
    assert "2*3*4 and snake_case_name." in page.text(a + "p")[0] and page.text(a + "ul li") == ["one", "two"] and page.text(a + "ol li") == ["three", "four"]
    assert page.find(a + "ol")[0].get_attribute("start") == "3" and page.text(a + "blockquote") == ["said"]
    assert page.text(a + "pre code") == ["def f(x):\n    return x < 1 & 2"] and page.text(a + ".block header span") == ["python"]
    assert page.find(a + "a")[0].get_attribute("href") == "https://example.org/x" and page.find(a + "a")[0].get_attribute("rel") == "noopener noreferrer"
    page.b.execute_script("navigator.clipboard.writeText = async text => { window.copied = text }")
    page.find(a + ".block button")[0].click()
    assert page.b.execute_script("return window.copied") == "def f(x):\n    return x < 1 & 2"
    page.find("article.assistant .foot button")[0].click()
    assert page.b.execute_script("return window.copied") == text


def test_errors_are_said(page, server):
    page.ask({"text": "</think>half"}, {"fail": "the device burnt"})
    page.idle()
    assert "device burnt" in page.text("article .error")[0] and page.text("article.assistant .text") == ["half"]
    page.b.execute_script("messages[0].content = arguments[0]", server.script([{"text": "</think>whole"}]))
    page.find("article .error button")[0].click()
    page.wait(lambda: page.text("article.assistant .text") == ["whole"])
    page.settle(max_tokens="1")
    page.b.execute_script("settings.top_p = '7'")
    page.say("x")
    page.wait(lambda: page.find("article .error"))
    assert "(400)" in page.text("article .error")[0] and "top_p" in page.text("article .error")[0].lower()
    page.settle(max_tokens="", top_p="")


def test_api_key(browser, tmp_path):
    s = Server(tmp_path, api_key="open sesame")
    try:
        p = Page(browser, s)
        p.wait(lambda: p.find("#ask-key")[0].is_displayed())
        p.find("#asked-key")[0].send_keys("wrong", Keys.ENTER)
        p.wait(lambda: p.find("#asked-key")[0].get_attribute("value") == "" and p.find("#ask-key")[0].is_displayed())
        p.find("#asked-key")[0].send_keys("open sesame", Keys.ENTER)
        p.wait(lambda: "test-model" in p.text("#model")[0])
        p.say(s.script([{"text": "</think>come in"}]))
        p.wait(lambda: p.text("article.assistant .text") == ["come in"])
        assert "open sesame" not in json.dumps(browser.execute_script("return {...localStorage}"))
    finally:
        assert s.stop() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_looks_on_a_phone(page, scheme):
    page.b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": True})
    page.b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    try:
        page.open()
        page.ask({"text": "</think>" + "A long answer with averyveryveryveryveryveryveryveryveryveryveryverylongword. " * 5 + "\n\n```\n" + "wide " * 60 + "\n```"})
        page.idle()
        assert page.b.execute_script("return document.documentElement.scrollWidth <= 360 && document.querySelector('main').scrollWidth <= 360")
        send = page.find("#send")[0].rect
        assert send["x"] + send["width"] <= 360 and send["y"] + send["height"] <= 640
        ink, paper = page.b.execute_script("const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]")
        light = [sum(map(int, re.findall(r"\d+", c)[:3])) for c in (ink, paper)]
        assert (light[0] < 200 and light[1] > 650) if scheme == "light" else (light[0] > 600 and light[1] < 120)
        page.find("#open-settings")[0].click()
        box = page.find("#settings")[0].rect
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360
    finally:
        page.b.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.b.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_spans_that_never_close_cost_little(page):
    """Twice the text, about twice the time: an answer that has gone wrong must not freeze the page."""
    for piece in ("**a ", "[a", "` ``a ", "*a "):
        times = page.b.execute_script("""return [20000, 40000].map(n => {
            let best = Infinity;
            for (let i = 0; i < 3; i++) { const from = performance.now(); inline(document.createElement("p"), arguments[0].repeat(n)); best = Math.min(best, performance.now() - from); }
            return best; })""".replace("arguments[0]", json.dumps(piece)))
        assert times[1] < 3 * times[0] + 50, (piece, times)
