// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
// The bytes of a packet's transport headers, field by field (IBTA volume 1, chapter 9).

import { el } from "./dom.js";

const bit = (value, place) => (value >> place) & 1;
const inHex = (value) => `0x${value.toString(16)}`;
const inDecimal = (value) => `${value}`;

/** Fields of each header: name, length in bytes, and how to show the value. */
const FIELDS = {
  BTH: [
    ["OpCode", 1, inHex],
    ["SE, MigReq, PadCnt, TVer", 1, (value) => `${bit(value, 7)}, ${bit(value, 6)}, ${(value >> 4) & 3}, ${value & 15}`],
    ["P_Key", 2, inHex], ["FECN, BECN", 1, (value) => `${bit(value, 7)}, ${bit(value, 6)}`], ["DestQP", 3, inDecimal],
    ["AckReq", 1, (value) => `${bit(value, 7)}`], ["PSN", 3, inDecimal],
  ],
  XRCETH: [["reserved", 1, inHex], ["XRCSRQ", 3, inDecimal]],
  DETH: [["Q_Key", 4, inHex], ["reserved", 1, inHex], ["SrcQP", 3, inDecimal]],
  RETH: [["virtual address", 8, inHex], ["R_Key", 4, inHex], ["DMA length", 4, inDecimal]],
  AtomicETH: [["virtual address", 8, inHex], ["R_Key", 4, inHex], ["swap or add", 8, inHex], ["compare", 8, inHex]],
  AETH: [["syndrome", 1, inHex], ["MSN", 3, inDecimal]],
  AtomicAckETH: [["original data", 8, inHex]],
  ImmDt: [["immediate", 4, inHex]],
  IETH: [["R_Key", 4, inHex]],
  FETH: [["placement, selectivity", 4, inHex]],
  rest: [["", Infinity, () => ""]],
};

/**
 * Headers after the BTH, by the operation in the low bits of the opcode. Those of datagrams are by the whole opcode.
 */
const EXTENDED = {
  0x03: ["ImmDt"], 0x05: ["ImmDt"], 0x06: ["RETH"], 0x09: ["ImmDt"], 0x0a: ["RETH"], 0x0b: ["RETH", "ImmDt"], 0x0c: ["RETH"],
  0x0d: ["AETH"], 0x0f: ["AETH"], 0x10: ["AETH"], 0x11: ["AETH"], 0x12: ["AETH", "AtomicAckETH"], 0x13: ["AtomicETH"],
  0x14: ["AtomicETH"], 0x16: ["IETH"], 0x17: ["IETH"], 0x1c: ["FETH", "RETH"], 0x1d: ["RETH"],
};
const DATAGRAM = { 0x64: ["DETH"], 0x65: ["DETH", "ImmDt"] };
/** First opcode of datagrams. Those below are of connections, reliable and unreliable. */
const DATAGRAMS = 0x40;
/**
 * Range of the opcodes of extended reliable connections. All their packets but responses name a shared receive queue.
 */
const [XRC, BEHIND_XRC] = [0xa0, 0xc0];
const isResponse = (operation) => operation >= 0x0d && operation <= 0x12;

/** Returns the names of the headers after the BTH. */
function extendedHeaders(opcode) {
  const operation = opcode & 0x1f;
  const xrc = opcode >= XRC && opcode < BEHIND_XRC;
  if (!xrc && opcode >= DATAGRAMS) return DATAGRAM[opcode] ?? [];
  return [...(xrc && !isResponse(operation) ? ["XRCETH"] : []), ...(EXTENDED[operation] ?? [])];
}

/** Returns rows [header, bytes, field, value] of headers in hexadecimal digits. */
export function fields(digits) {
  const extended = extendedHeaders(parseInt(digits.slice(0, 2), 16));
  const rows = [];
  let at = 0;
  for (const header of ["BTH", ...extended, "rest"]) {
    for (const [name, length, show] of FIELDS[header]) {
      const bytes = digits.slice(at, at + 2 * length);
      if (bytes === "") return rows;
      at += bytes.length;
      // A number cannot hold eight bytes exactly.
      const value = length > 6 ? BigInt(`0x${bytes}`) : parseInt(bytes, 16);
      rows.push([header, bytes.match(/../g).join(" "), name, show(value)]);
    }
  }
  return rows;
}

/** Makes a table of the headers. */
export function headerTable(digits) {
  const rows = fields(digits);
  const cells = (row, index) => [
    row[0] === rows[index - 1]?.[0] ? el("td") : el("th", { scope: "row" }, row[0]),
    el("td", {}, el("code", {}, row[1])), el("td", {}, row[2]), el("td", { class: "number" }, row[3]),
  ];
  return el("table", { class: "headers" }, el("caption", {}, "Bytes of its transport headers"),
    el("thead", {}, el("tr", {}, ...["header", "bytes", "field", "value"].map((text) => el("th", { scope: "col" }, text)))),
    el("tbody", {}, ...rows.map((row, index) => el("tr", {}, ...cells(row, index)))));
}
