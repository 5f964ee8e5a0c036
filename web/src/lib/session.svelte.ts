import type { Session } from "./api/types";

/** Who is signed in. */
class Current {
  /** `undefined`: not asked yet. `null`: signed out. */
  value = $state.raw<Session | null | undefined>(undefined);
  /** It ended while the page was open. */
  ended = $state(false);
  /** There is no user at all yet. */
  setupNeeded = $state(false);

  get operator(): boolean {
    return this.value?.user.role === "operator";
  }

  begin(session: Session): void {
    this.value = session;
    this.ended = false;
    this.setupNeeded = false;
  }

  /** An answer says that no user is signed in any more. */
  lost(): void {
    if (this.value) this.ended = true;
    this.value = null;
  }

  end(): void {
    this.value = null;
    this.ended = false;
  }
}

export const session = new Current();
