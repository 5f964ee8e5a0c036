export type Theme = "system" | "light" | "dark";

const KEY = "flexfeed.theme";

class Themes {
  chosen = $state<Theme>("system");
  private system = matchMedia("(prefers-color-scheme: dark)");
  private systemDark = $state(this.system.matches);
  dark = $derived(this.chosen === "dark" || (this.chosen === "system" && this.systemDark));

  start(): void {
    const set = document.documentElement.dataset.theme;
    if (set === "light" || set === "dark") this.chosen = set;
    this.system.addEventListener("change", (event) => (this.systemDark = event.matches));
  }

  choose(theme: Theme): void {
    this.chosen = theme;
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    try {
      if (theme === "system") localStorage.removeItem(KEY);
      else localStorage.setItem(KEY, theme);
    } catch {
      // Without storage it holds for this visit.
    }
  }

  /** The other one of what is seen. */
  flip(): void {
    this.choose(this.dark ? "light" : "dark");
  }
}

export const theme = new Themes();
