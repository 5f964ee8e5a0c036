// What a source reports of a channel's flow beside the fields that the API describes.

export interface PacketSize {
  /** UDP payload of a full packet in bytes; null where it is not known. */
  bytes: number | null;
  /** Members whose paths do not take larger packets. */
  narrow: number;
}

/** The size of a flow's packets, from what its source reports. Earlier sources report none. */
export function packetSizeOf(flow: unknown): PacketSize {
  const report: Record<string, unknown> = typeof flow === "object" && flow !== null ? { ...flow } : {};
  const { packet_size: bytes, narrow_members: narrow } = report;
  return { bytes: typeof bytes === "number" ? bytes : null, narrow: typeof narrow === "number" ? narrow : 0 };
}

export interface Repairs {
  /** Packets with a repair symbol that were sent; null where it is not known. */
  sent: number | null;
  /** Lost packets that receivers rebuilt from them: as many repairs by unicast were saved. */
  saved: number;
}

/** What erasure coding cost and saved, from what the source reports. Sources of before it report none. */
export function repairsOf(flow: unknown): Repairs {
  const report: Record<string, unknown> = typeof flow === "object" && flow !== null ? { ...flow } : {};
  const { repair_symbols: sent, rebuilt: saved } = report;
  return { sent: typeof sent === "number" ? sent : null, saved: typeof saved === "number" ? saved : 0 };
}

export interface FlowRate {
  /** Bit/s at which the flow may be sent now; null where it is not known. */
  bps: number | null;
  /** Id of the receiver that alone limits the rate. */
  limitedBy: string | null;
  breaker: "closed" | "halved" | "open";
}

/** The rate of a flow, from what its source reports. Sources of before rate control report none. */
export function rateOf(flow: unknown): FlowRate {
  const report: Record<string, unknown> = typeof flow === "object" && flow !== null ? { ...flow } : {};
  const { rate_bps: bps, limited_by: limitedBy, breaker } = report;
  return {
    bps: typeof bps === "number" ? bps : null,
    limitedBy: typeof limitedBy === "string" ? limitedBy : null,
    breaker: breaker === "open" || breaker === "halved" ? breaker : "closed",
  };
}
