// The shapes of /api/v1 by the names that the pages use. They come from docs/openapi.json, which the
// console's own code makes (`npm run api` renews schema.d.ts).
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Rung = Schemas["Rung"];
export type Role = Schemas["RoleName"];
export type Session = Schemas["SignedIn"];
export type RungCounts = Schemas["Counts"];
export type ChannelNow = Schemas["ChannelOverview"];
export type Move = Schemas["Move"];
export type Overview = Schemas["Overview"];
export type Warning = Schemas["Warning"];
export type Overload = Schemas["Overload"];
export type ForgeryReports = Schemas["ForgeryReports"];
export type Receiver = Schemas["Receiver"];
export type ReceiverPage = Schemas["Page"];
export type ReceiverSession = Schemas["Session"];
export type Samples = Schemas["Samples"];
export type SamplePoint = Schemas["Point"];
export type Channel = Schemas["Channel"];
export type Progress = Schemas["Progress"];
export type Update = Schemas["UpdateRow"];
export type UpdateDetail = Schemas["UpdateDetail"];
export type Relay = Schemas["Relay"];
export type Feed = Schemas["Feed"];
export type FeedSeen = Schemas["FeedSight"];
export type FeedHour = Schemas["HourOfPolls"];
export type FeedHistory = Schemas["FeedHistory"];
export type FeedTest = Schemas["FeedTest"];
export type Enrolment = Schemas["Enrolment"];
export type NewEnrolment = Schemas["EnrolmentLink"];
export type User = Schemas["User"];
export type Scope = Schemas["Scope"];
export type ApiToken = Schemas["ApiToken"];
export type CreatedApiToken = Schemas["CreatedApiToken"];
export type AuditRow = Schemas["AuditLine"];
export type Command = Schemas["CommandStatus"];
export type CommandReceipt = Schemas["CommandReceipt"];
/** The first message of the event stream, and the one after a gap. */
export type Snapshot = Schemas["Snapshot"];
/** What is different from the message before. */
export type Delta = Schemas["Update"];

export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}
