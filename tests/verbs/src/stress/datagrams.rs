// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One end of a stress run over UD: rounds of datagrams both ways, each checked with its global route header.

use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::endpoint::Totals;
use super::{During, Failure, Outcome};
use crate::control::{Control, Words};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_wc};
use crate::pattern::POISON;
use crate::rng::{Rng, mix};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, Ah, Context, Cq, GidEntry, Mr, Pd, QPT_UD, Qp, QpConfig, SEND_INLINE,
    SEND_SIGNALED, SendOp, SendWr, WC_GRH, WC_RECV, WC_SUCCESS, WC_WITH_IMM, mtu_bytes,
    status_name,
};

/// Bytes in front of a datagram's payload.
pub const GRH: usize = 40;
/// Datagrams of a round.
const ROUND: usize = 16;

/// What one round sends: the same on both ends.
struct Datagram {
    len: usize,
    imm: Option<u32>,
    key: u64,
}

fn plan(seed: u64, side: u64, round: u64, mtu: usize) -> Vec<Datagram> {
    let mut rng = Rng::new(&[seed, 0xd6, side, round]);
    (0..ROUND)
        .map(|i| {
            let key = mix(rng.next_u64());
            // Every other one is numbered by its first bytes instead of by immediate data.
            let numbered = !i.is_multiple_of(2);
            let len = match rng.below(4) {
                0 => mtu,
                1 => rng.below(65) as usize,
                _ => rng.below(mtu as u64 + 1) as usize,
            };
            Datagram {
                len: if numbered { len.max(8) } else { len },
                imm: (!numbered).then_some(i as u32),
                key,
            }
        })
        .collect()
}

/// Checks the 40 bytes that stand before a datagram from `from` to `to`.
pub fn check_grh(grh: &[u8; GRH], from: Ipv6Addr, to: Ipv6Addr) -> Result<(), String> {
    if let (Some(from4), Some(to4)) = (from.to_ipv4_mapped(), to.to_ipv4_mapped()) {
        // RoCE v2 over IPv4: the IPv4 header fills the second half.
        let ip = &grh[20..];
        if ip[0] >> 4 != 4 || ip[12..16] != from4.octets() || ip[16..20] != to4.octets() {
            return Err(format!(
                "IPv4 header {ip:02x?} is not from {from4} to {to4}"
            ));
        }
    } else if grh[0] >> 4 != 6 || grh[8..24] != from.octets() || grh[24..40] != to.octets() {
        return Err(format!("GRH {grh:02x?} is not from {from} to {to}"));
    }
    Ok(())
}

/// Runs one end (`side` 0 or 1); side 0 decides how long. Lost datagrams are an error unless `may_lose`.
pub fn run(
    context: &Arc<Context>,
    gid: GidEntry,
    seed: u64,
    duration: Duration,
    may_lose: bool,
    side: u64,
    mut control: Control,
) -> Outcome<Totals> {
    const QKEY: u32 = 0x1111_2222;
    let pd = Pd::new(context).during("ibv_alloc_pd")?;
    let cq = Cq::new(context, 4 * ROUND as u32).during("ibv_create_cq")?;
    let config = QpConfig {
        kind: QPT_UD,
        cap: ibv_qp_cap {
            max_send_wr: ROUND as u32,
            max_recv_wr: ROUND as u32,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        },
        ..Default::default()
    };
    let qp = Qp::new(&pd, &cq, &cq, &config).during("creating a UD QP")?;
    qp.start_datagrams(QKEY, 0).during("starting a UD QP")?;
    let mine = Words::default()
        .with("qpn", qp.number())
        .with("gid", gid.gid)
        .with("lid", gid.lid)
        .with(
            "mtu",
            context.port_attr().during("ibv_query_port")?.active_mtu,
        )
        .with("seed", seed);
    let theirs = control.swap_words(&mine).during("exchanging QP numbers")?;
    let seed = if side == 0 {
        seed
    } else {
        theirs.number("seed")?
    };
    let peer_qpn = theirs.number("qpn")? as u32;
    let peer_gid: Ipv6Addr = theirs.text("gid")?.parse()?;
    let mtu = mtu_bytes(mine.number("mtu")?.min(theirs.number("mtu")?) as i32);
    let peer_lid = theirs.number("lid")? as u16;
    let ah = Ah::new(&pd, gid.index, peer_gid, peer_lid).during("ibv_create_ah")?;
    let stride = (GRH + mtu + 64).next_multiple_of(64);
    let outgoing = Mr::new(&pd, ROUND * stride, 0).during("ibv_reg_mr")?;
    let incoming = Mr::new(&pd, ROUND * stride, ACCESS_LOCAL_WRITE).during("ibv_reg_mr")?;

    let mut totals = Totals::default();
    let (mut lost, mut sent_by_peer) = (0_u64, 0_u64);
    let begin = Instant::now();
    for round in 0.. {
        incoming.memory().set(0, ROUND * stride, POISON);
        let coming = plan(seed, 1 - side, round, mtu);
        let mut rng = Rng::new(&[seed, 0xd7, side, round]);
        for (i, datagram) in coming.iter().enumerate() {
            let at = i * stride;
            let split = rng.range(1, (GRH + mtu - 1) as u64) as usize;
            let (one, two) = (
                incoming.sge(at, split),
                incoming.sge(at + split, GRH + mtu - split),
            );
            let _ = datagram;
            qp.post_recv(&[(i as u64, &[one, two])])
                .map_err(|e| Failure(format!("posting a receive: {}", e.error)))?;
        }
        // The leader says whether this is the last round.
        let last = begin.elapsed() >= duration;
        let theirs = control.swap(&[u8::from(last)]).during("starting a round")?;
        let last = if side == 0 {
            last
        } else {
            theirs.first() == Some(&1)
        };

        let going = plan(seed, side, round, mtu);
        for (i, datagram) in going.iter().enumerate() {
            let at = i * stride;
            outgoing.memory().fill(at, datagram.len, datagram.key, 0);
            if datagram.imm.is_none() {
                outgoing.memory().write(at, &(i as u64).to_le_bytes());
            }
            let split = rng.below(datagram.len as u64 + 1) as usize;
            let sges = [
                outgoing.sge(at, split),
                outgoing.sge(at + split, datagram.len - split),
            ];
            let op = match datagram.imm {
                Some(imm) => SendOp::DatagramImm(&ah, peer_qpn, QKEY, imm),
                None => SendOp::Datagram(&ah, peer_qpn, QKEY),
            };
            let inline = datagram.len <= qp.cap.max_inline_data as usize;
            let flags = SEND_SIGNALED | if inline { SEND_INLINE } else { 0 };
            let wr = SendWr::new(1 << 32 | i as u64, op, &sges).flags(flags);
            qp.post_send(&[wr])
                .map_err(|e| Failure(format!("posting a datagram: {}", e.error)))?;
            totals.ops += 1;
            totals.bytes += datagram.len as u64;
        }
        let (mut sends, mut receives) = (0, 0);
        let mut seen = [false; ROUND];
        let mut check = |wc: &ibv_wc| -> Outcome<()> {
            ensure!(
                wc.status == WC_SUCCESS,
                "round {round}: {:#x} failed: {}",
                wc.wr_id,
                status_name(wc.status)
            );
            ensure!(
                wc.qp_num == qp.number(),
                "completion names QP {:#x}",
                wc.qp_num
            );
            if wc.wr_id >> 32 != 0 {
                ensure!(
                    wc.wr_id == 1 << 32 | sends as u64,
                    "send {sends} completed as {:#x}",
                    wc.wr_id
                );
                sends += 1;
                return Ok(());
            }
            ensure!(
                wc.wr_id == receives as u64,
                "receive {receives} completed as {:#x}",
                wc.wr_id
            );
            receives += 1;
            ensure!(
                wc.opcode == WC_RECV && wc.wc_flags & WC_GRH != 0,
                "unexpected receive: {wc:?}"
            );
            ensure!(
                wc.src_qp == peer_qpn,
                "datagram from QP {:#x}, not {peer_qpn:#x}",
                wc.src_qp
            );
            let at = wc.wr_id as usize * stride;
            let len = (wc.byte_len as usize)
                .checked_sub(GRH)
                .ok_or_else(|| Failure("byte_len below 40".into()))?;
            let mut grh = [0; GRH];
            incoming.memory().read(at, &mut grh);
            check_grh(&grh, peer_gid, gid.gid).map_err(Failure)?;
            let number = if wc.wc_flags & WC_WITH_IMM == 0 {
                let mut head = [0; 8];
                incoming.memory().read(at + GRH, &mut head);
                u64::from_le_bytes(head) as usize
            } else {
                u32::from_be(wc.imm_data) as usize
            };
            ensure!(
                number < ROUND && !seen[number],
                "datagram {number} came twice or never was"
            );
            seen[number] = true;
            let want = &coming[number];
            ensure!(
                want.imm.is_some() == (wc.wc_flags & WC_WITH_IMM != 0),
                "immediate data in the wrong datagram"
            );
            ensure!(
                len == want.len,
                "datagram of {} bytes came with {len}",
                want.len
            );
            let skip = if want.imm.is_none() { 8 } else { 0 };
            let checked = incoming
                .memory()
                .check(at + GRH + skip, len - skip, want.key, skip);
            ensure!(
                checked.is_ok(),
                "round {round} datagram {number}: byte {checked:?} is wrong"
            );
            let guard = incoming
                .memory()
                .check_set(at + GRH + len, stride - GRH - len, POISON);
            ensure!(
                guard.is_ok(),
                "round {round} datagram {number}: bytes behind its end changed"
            );
            totals.batches += 1;
            Ok(())
        };
        // What cannot be lost comes, however slow the machine is: all completions of sends, and datagrams unless they
        // may be lost.
        let quiet = |sends_done| {
            Duration::from_secs(if may_lose && sends_done == ROUND {
                2
            } else {
                60
            })
        };
        let mut all_sent = None::<Instant>;
        let mut sends_done = 0;
        let mut receives_done = 0;
        loop {
            if let Some(wc) = cq.wait(Duration::from_millis(200)).during("polling")? {
                check(&wc)?;
                if wc.wr_id >> 32 != 0 {
                    sends_done += 1;
                } else {
                    receives_done += 1;
                }
            } else {
                let since = all_sent.get_or_insert_with(Instant::now).elapsed();
                if since > quiet(sends_done) {
                    break;
                }
            }
            if sends_done == ROUND && receives_done == ROUND {
                break;
            }
        }
        ensure!(
            sends_done == ROUND,
            "round {round}: only {sends_done} of {ROUND} datagrams completed"
        );
        lost += (ROUND - receives_done) as u64;
        sent_by_peer += ROUND as u64;
        ensure!(
            may_lose || lost == 0,
            "round {round}: {lost} datagrams were lost"
        );
        control.swap(b"round").during("finishing a round")?;
        if receives_done < ROUND {
            qp.reset().during("emptying the receive queue")?;
            qp.start_datagrams(QKEY, 0).during("starting again")?;
        }
        if last {
            break;
        }
    }
    ensure!(
        lost * 2 <= sent_by_peer,
        "{lost} of {sent_by_peer} datagrams were lost"
    );
    totals.starved = lost;
    control.swap(b"bye").during("parting")?;
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_apart() {
        let (a4, b4): (Ipv6Addr, Ipv6Addr) = (
            "::ffff:10.0.0.1".parse().unwrap(),
            "::ffff:10.0.0.2".parse().unwrap(),
        );
        let mut grh = [0; GRH];
        assert!(check_grh(&grh, a4, b4).is_err());
        grh[20] = 0x45;
        grh[32..36].copy_from_slice(&[10, 0, 0, 1]);
        grh[36..40].copy_from_slice(&[10, 0, 0, 2]);
        assert!(check_grh(&grh, a4, b4).is_ok());
        assert!(check_grh(&grh, b4, a4).is_err());
        let (a6, b6): (Ipv6Addr, Ipv6Addr) =
            ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let mut grh = [0; GRH];
        grh[0] = 0x60;
        grh[8..24].copy_from_slice(&a6.octets());
        grh[24..40].copy_from_slice(&b6.octets());
        assert!(check_grh(&grh, a6, b6).is_ok());
        assert!(check_grh(&grh, b6, a6).is_err());
    }
}
