import DOMPurify, { type Config } from "dompurify";

const CONFIG: Config = {
  ALLOWED_TAGS: [
    "a", "abbr", "b", "bdi", "bdo", "blockquote", "br", "caption", "cite", "code", "dd", "del", "details", "dfn", "div", "dl", "dt", "em",
    "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "samp",
    "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr", "u", "ul", "var", "wbr", "img",
  ],
  ALLOWED_ATTR: ["href", "title", "dir", "lang", "colspan", "rowspan", "scope", "datetime", "start", "reversed", "alt"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // The pattern is for addresses; these hold none.
  ADD_URI_SAFE_ATTR: ["dir", "lang", "colspan", "rowspan", "scope", "datetime", "start", "reversed"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  KEEP_CONTENT: true,
  WHOLE_DOCUMENT: false,
  RETURN_DOM_FRAGMENT: true,
};

/** More than this of an entry is not shown. */
export const MOST_HTML = 2_000_000;

/**
 * HTML of a feed as HTML that is safe to show: no scripts, styles, forms or frames, and nothing
 * that is loaded from anywhere (a picture would tell its server who looks). Links open elsewhere.
 */
export function sanitise(html: string): string {
  const fragment = DOMPurify.sanitize(html.slice(0, MOST_HTML), CONFIG) as unknown as DocumentFragment;
  for (const image of fragment.querySelectorAll("img")) {
    const note = document.createElement("span");
    note.className = "picture";
    note.textContent = image.getAttribute("alt") ? `[picture: ${image.getAttribute("alt")}]` : "[picture]";
    image.replaceWith(note);
  }
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer nofollow");
  }
  const holder = document.createElement("div");
  holder.append(fragment);
  return holder.innerHTML;
}

function escape(text: string): string {
  return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

/** The document for the sandboxed frame: sanitised HTML, or plain text. */
export function frameDocument(content: string, type: string | null, dark: boolean): string {
  const isHtml = type === null || /html/i.test(type);
  const body = isHtml ? sanitise(content) : `<pre>${escape(content.slice(0, MOST_HTML))}</pre>`;
  return (
    `<!doctype html><html lang="" data-theme="${dark ? "dark" : "light"}"><head><meta charset="utf-8">` +
    `<meta name="referrer" content="no-referrer"><title>Entry</title><link rel="stylesheet" href="/frame.css"></head>` +
    `<body dir="auto">${body}</body></html>`
  );
}

/** A link of a feed if it is one for the web, else nothing. */
export function webLink(link: string | null | undefined): string | null {
  if (!link) return null;
  try {
    const url = new URL(link);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
