import { describe, expect, it } from "vitest";
import { frameDocument, sanitise, webLink } from "../lib/sanitise";

const NASTY = [
  "<script>alert(1)</script>",
  "<scr<script>ipt>alert(1)</scr</script>ipt>",
  "<img src=x onerror=alert(1)>",
  "<img src=\"https://tracker.example/pixel.gif\" srcset=\"https://tracker.example/2x.gif 2x\">",
  "<svg onload=alert(1)><script>alert(1)</script></svg>",
  "<svg><animate onbegin=alert(1) attributeName=x></svg>",
  "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=1 onerror=alert(1)&gt;\">",
  "<a href=\"javascript:alert(1)\">x</a>",
  "<a href=\"java\tscript:alert(1)\">x</a>",
  "<a href=\" &#106;avascript:alert(1)\">x</a>",
  "<a href=\"data:text/html,<script>alert(1)</script>\">x</a>",
  "<a href=\"vbscript:msgbox(1)\">x</a>",
  "<iframe src=\"https://evil.example\"></iframe>",
  "<iframe srcdoc=\"<script>alert(1)</script>\"></iframe>",
  "<object data=\"x.swf\"></object><embed src=\"x.swf\">",
  "<form action=\"https://evil.example\"><input name=password><button>go</button></form>",
  "<style>@import url(https://evil.example/x.css); * { display: none }</style>",
  "<p style=\"background:url(https://evil.example/x)\">x</p>",
  "<link rel=stylesheet href=\"https://evil.example/x.css\"><base href=\"https://evil.example/\"><meta http-equiv=refresh content=\"0;url=https://evil.example\">",
  "<video src=x onerror=alert(1)></video><audio src=x onerror=alert(1)></audio>",
  "<details open ontoggle=alert(1)>x</details>",
  "<div onclick=alert(1) onmouseover=alert(1) id=app class=panel data-x=1>x</div>",
  "<template><script>alert(1)</script></template>",
  "<noscript><p title=\"</noscript><img src=x onerror=alert(1)>\"></noscript>",
  "<xmp><img src=x onerror=alert(1)></xmp><plaintext>",
  "<body onload=alert(1)><html onmouseover=alert(1)>",
  "\u0000<script\u0000>alert(1)</script>",
  "<p>unclosed <b><i><table><td>",
];

describe("HTML of feeds", () => {
  it.each(NASTY)("is harmless: %s", (html) => {
    const holder = document.createElement("div");
    holder.innerHTML = sanitise(html);
    const bad = holder.querySelectorAll("script, style, img, svg, math, iframe, object, embed, form, input, button, link, base, meta, video, audio, template, noscript, [style], [id], [srcset], [src]");
    expect([...bad].map((element) => element.outerHTML)).toEqual([]);
    for (const element of holder.querySelectorAll("*")) {
      for (const { name, value } of element.attributes) {
        expect(name).not.toMatch(/^on/i);
        if (name === "href") expect(value).toMatch(/^(https?|mailto):/i);
      }
    }
  });

  it("keeps what makes a text readable", () => {
    const html = "<h2>A</h2><p>b <b>c</b> <code>d</code></p><pre>e\n f</pre><blockquote>g</blockquote><ul><li>h</li></ul><table><tbody><tr><td colspan=\"2\">i</td></tr></tbody></table>";
    expect(sanitise(html)).toBe(html);
  });

  it("opens links elsewhere and tells them nothing", () => {
    expect(sanitise('<a href="https://example.org/a?b=1&amp;c=2" target="_self">x</a>')).toBe(
      '<a href="https://example.org/a?b=1&amp;c=2" target="_blank" rel="noopener noreferrer nofollow">x</a>',
    );
  });

  it("says where a picture was, without loading it", () => {
    expect(sanitise('<img src="https://example.org/x.png" alt="a cat &amp; <b>">')).toBe('<span class="picture">[picture: a cat &amp; &lt;b&gt;]</span>');
    expect(sanitise("<img>")).toBe('<span class="picture">[picture]</span>');
  });

  it("bears right-to-left text and emoji", () => {
    expect(sanitise('<p dir="rtl">مرحبا 👩‍👩‍👧‍👦</p>')).toBe('<p dir="rtl">مرحبا 👩‍👩‍👧‍👦</p>');
  });

  it("makes a document of text that stays text", () => {
    const page = frameDocument("</pre><script>alert(1)</script> & \"'", "text", true);
    expect(page).not.toContain("<script");
    expect(page).toContain('data-theme="dark"');
    const parsed = new DOMParser().parseFromString(page, "text/html");
    expect(parsed.querySelector("pre")?.textContent).toBe("</pre><script>alert(1)</script> & \"'");
  });

  it("cuts what is without end", () => {
    expect(sanitise("x".repeat(5_000_000)).length).toBe(2_000_000);
  });
});

describe("links of feeds", () => {
  it("are followed only into the web", () => {
    expect(webLink("https://example.org/a b")).toBe("https://example.org/a%20b");
    for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "file:///etc/passwd", "//example.org", "x", "", null, undefined]) expect(webLink(bad)).toBeNull();
  });
});
