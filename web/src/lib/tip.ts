// One tooltip for the whole page: on hover, on focus, and on tap for those that can be focused.

const DELAY_MS = 280;
let box: HTMLDivElement | null = null;
let owner: Element | null = null;
let timer: ReturnType<typeof setTimeout> | null = null;

function hide(): void {
  if (timer) clearTimeout(timer);
  timer = null;
  owner?.removeAttribute("aria-describedby");
  owner = null;
  if (box) box.hidden = true;
}

function show(at: Element, text: string): void {
  if (!text) return;
  if (!box) {
    box = document.createElement("div");
    box.className = "tip";
    box.id = "tip";
    box.setAttribute("role", "tooltip");
    window.addEventListener("scroll", hide, { capture: true, passive: true });
    window.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  }
  // Inside an open dialog, for only what is there is above everything else.
  const parent = at.closest("dialog") ?? document.body;
  if (box.parentElement !== parent) parent.append(box);
  owner?.removeAttribute("aria-describedby");
  owner = at;
  if (at.matches("a, button, input, [tabindex]")) at.setAttribute("aria-describedby", "tip");
  box.textContent = text;
  box.hidden = false;
  const place = at.getBoundingClientRect();
  const own = box.getBoundingClientRect();
  const left = Math.max(12, Math.min(place.left, document.documentElement.clientWidth - own.width - 12));
  const below = place.bottom + 6;
  const top = below + own.height > window.innerHeight - 8 && place.top > own.height + 12 ? place.top - own.height - 6 : below;
  box.style.left = `${Math.round(left)}px`;
  box.style.top = `${Math.round(top)}px`;
}

/** An attachment that explains an element: `{@attach tip("…")}`. */
export function tip(text: string | null | undefined | (() => string)) {
  return (element: Element) => {
    const words = () => (typeof text === "function" ? text() : (text ?? ""));
    if (text) element.setAttribute("data-tip", "");
    const enter = (event: Event) => {
      if ((event as PointerEvent).pointerType === "touch") return;
      if (timer) clearTimeout(timer);
      timer = setTimeout(() => show(element, words()), DELAY_MS);
    };
    const focus = () => {
      if (element.matches(":focus-visible")) show(element, words());
    };
    const click = () => element.classList.contains("term") && show(element, words());
    const leave = () => {
      if (timer) clearTimeout(timer);
      timer = null;
      if (owner === element) hide();
    };
    element.addEventListener("pointerenter", enter);
    element.addEventListener("pointerleave", leave);
    element.addEventListener("focus", focus);
    element.addEventListener("blur", leave);
    element.addEventListener("click", click);
    return () => {
      leave();
      element.removeEventListener("pointerenter", enter);
      element.removeEventListener("pointerleave", leave);
      element.removeEventListener("focus", focus);
      element.removeEventListener("blur", leave);
      element.removeEventListener("click", click);
    };
  };
}
