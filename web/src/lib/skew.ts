/** A smaller difference than this is the network's, and the header's whole seconds. */
const WORTH_MS = 3000;

/** How far this computer's clock is from the console's: ages go by the console's. */
class Skew {
  ms = 0;

  read(response: Response, now = Date.now()): void {
    const at = Date.parse(response.headers.get("date") ?? "");
    if (!Number.isFinite(at)) return;
    const difference = at - now;
    this.ms = Math.abs(difference) < WORTH_MS ? 0 : difference;
  }
}

export const skew = new Skew();
