import { api } from "./api/client";
import { asProblem, type Problem } from "./api/problem";

export interface Note {
  id: number;
  tone: "good" | "bad" | "plain";
  text: string;
}

/** What became of actions, said once and quietly at the bottom of the page. */
class Notes {
  list = $state.raw<Note[]>([]);
  private next = 1;

  say(text: string, tone: Note["tone"] = "plain"): void {
    const note = { id: this.next, tone, text };
    this.next += 1;
    this.list = [...this.list.slice(-2), note];
    setTimeout(() => this.drop(note.id), tone === "bad" ? 15_000 : 6000);
  }

  drop(id: number): void {
    this.list = this.list.filter((note) => note.id !== id);
  }
}

export const notes = new Notes();

const POLLS_MS = [300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000];

/**
 * Follows a command that the source has been asked for, until it is done. Says how it ended.
 */
export async function followCommand(answer: unknown, what: string): Promise<void> {
  const id = answer && typeof answer === "object" && "command_id" in answer ? (answer as { command_id: number }).command_id : null;
  if (id === null || id === undefined) {
    notes.say(`${what}: done.`, "good");
    return;
  }
  for (const [tries, wait] of POLLS_MS.entries()) {
    if (tries === 4) notes.say(`${what}: the source was asked, and has not answered yet.`);
    await new Promise((resolve) => setTimeout(resolve, wait));
    const command = await api.command(id);
    if (command.state === "done") {
      notes.say(`${what}: ${command.result || "done."}`, "good");
      return;
    }
    if (command.state === "failed" || command.state === "expired") {
      notes.say(`${what}: ${command.result || (command.state === "expired" ? "the source did not take it in time." : "it failed.")}`, "bad");
      return;
    }
  }
  notes.say(`${what}: no answer from the source. It takes up what was asked when it is back, unless that is too late.`, "bad");
}

/** Does something and says how it went. Returns the problem, if there is one. */
export async function act(what: string, doing: () => Promise<unknown>, after?: () => void): Promise<Problem | null> {
  try {
    await followCommand(await doing(), what);
    after?.();
    return null;
  } catch (error) {
    const problem = asProblem(error);
    notes.say(`${what}: ${problem.title}. ${problem.detail}`, "bad");
    return problem;
  }
}
