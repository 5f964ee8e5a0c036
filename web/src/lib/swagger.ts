import SwaggerUI from "swagger-ui-dist/swagger-ui-es-bundle.js";
import "swagger-ui-dist/swagger-ui.css";
import "./swagger.css";

/** Draws the description of the API. Nothing is loaded from elsewhere. */
export function render(holder: HTMLElement, spec: Record<string, unknown>): void {
  holder.textContent = "";
  // It brings a second main part of the page, which there is one of already.
  const watcher = new MutationObserver(() => {
    const main = holder.querySelector("main");
    if (!main) return;
    watcher.disconnect();
    main.setAttribute("role", "group");
    main.setAttribute("aria-label", "Calls");
  });
  watcher.observe(holder, { childList: true, subtree: true });
  SwaggerUI({
    domNode: holder,
    spec,
    deepLinking: false,
    validatorUrl: null,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    tryItOutEnabled: false,
    supportedSubmitMethods: ["get"],
    syntaxHighlight: { activated: false },
  });
}
