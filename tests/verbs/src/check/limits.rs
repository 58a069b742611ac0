// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Limits: the device can do as much as it reports, and refuses one more.

use std::sync::Arc;

use super::pair::{Loop, Pair, same};
use super::{ACCESS_ALL, BUFFER, Case, Env, LinkConfig, expect};
use crate::ensure;
use crate::ffi::{ibv_ece, ibv_qp_cap};
use crate::memory::{Memory, open_files};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_WRITE, Context, Cq,
    DEVICE_MANAGED_FLOW_STEERING, Errno, Interface, Mr, Pd, QPT_DRIVER, QPT_RAW_PACKET,
    QPT_XRC_RECV, Qp, QpConfig, SendOp, SendWr, Sge, Srq, WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR,
    WC_SUCCESS, WR_RDMA_READ, WR_RDMA_WRITE, WR_SEND,
};

pub(super) const CASES: &[Case] = &[
    ("attributes-are-plausible", attributes),
    ("queue-pairs-of-other-types", other_types),
    ("queue-pairs-without-enhancements", no_enhancements),
    ("queue-sizes-at-their-limits", queue_sizes),
    ("cq-sizes-at-their-limits", cq_sizes),
    ("scatter-gather-at-its-limit", most_sges),
    ("regions-of-bad-memory", bad_regions),
    ("regions-of-every-shape", region_shapes),
    ("regions-of-no-bytes", empty_regions),
    ("pd-count-at-its-limit", pd_count),
    ("cq-count-at-its-limit", cq_count),
    ("mr-count-at-its-limit", mr_count),
    ("qp-count-at-its-limit", qp_count),
    ("srq-sizes-at-their-limits", srq_sizes),
    ("srq-count-at-its-limit", srq_count),
    ("a-thousand-qps", thousand),
    ("context-count-at-its-limit", contexts),
];

fn attributes(env: &mut Env) -> Outcome<()> {
    let port = env.context.port_attr().during("ibv_query_port")?;
    ensure!(port.state == 4, "the port is not active");
    // InfiniBand is 1, and only there a port has a LID; Ethernet is 2.
    let link_layer = if port.lid == 0 { 2 } else { 1 };
    ensure!(
        port.link_layer == link_layer || !env.vrnic,
        "link layer {} with LID {}",
        port.link_layer,
        port.lid
    );
    ensure!(
        env.attr.phys_port_cnt == 1 || !env.vrnic,
        "{} ports",
        env.attr.phys_port_cnt
    );
    ensure!(
        port.active_mtu <= port.max_mtu && port.active_mtu >= 1,
        "MTU {} of {}",
        port.active_mtu,
        port.max_mtu
    );
    if env.vrnic {
        ensure!(env.attr.max_sge >= 16, "only {} elements", env.attr.max_sge);
        ensure!(
            port.max_msg_sz >= 1 << 31,
            "messages of {} bytes only",
            port.max_msg_sz
        );
        ensure!(
            env.context.completion_vectors() >= 4,
            "{} completion vectors",
            env.context.completion_vectors()
        );
        ensure!(env.attr.atomic_cap != 0, "no atomics");
        ensure!(env.attr.max_qp >= 4096, "{} QPs only", env.attr.max_qp);
    }
    Ok(())
}

fn create(env: &Env, cap: ibv_qp_cap) -> Result<Qp, Errno> {
    let cq = Cq::new(&env.context, 16)?;
    Qp::new(
        &env.pd,
        &cq,
        &cq,
        &QpConfig {
            cap,
            ..Default::default()
        },
    )
}

/// Raw packets, which only a device with flow steering has; the receiving end of an extended connection, which needs
/// another verb; and a type that is the driver's own.
fn other_types(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let raw_packets = match env.attr.device_cap_flags & DEVICE_MANAGED_FLOW_STEERING {
        0 => Err(Errno(libc::EOPNOTSUPP)),
        _ => Ok(()),
    };
    for (kind, expected) in [
        (QPT_RAW_PACKET, raw_packets),
        (QPT_XRC_RECV, Err(Errno(libc::EINVAL))),
        (QPT_DRIVER, Err(Errno(libc::EOPNOTSUPP))),
    ] {
        let config = QpConfig {
            kind,
            ..Default::default()
        };
        let created = Qp::new(&env.pd, &cq, &cq, &config);
        ensure!(
            created.as_ref().map(drop).map_err(|error| *error) == expected,
            "a QP of type {kind}: {created:?}"
        );
    }
    Ok(())
}

/// There are no enhancements of a vendor, as on a NIC without them; and no order is promised in which bytes of a
/// message are written, whatever is asked of it.
fn no_enhancements(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let link = env.link(&LinkConfig::default())?;
    let none = Errno(libc::EOPNOTSUPP);
    let ece = link.qp.ece();
    ensure!(ece.is_err_and(|e| e == none), "ibv_query_ece: {ece:?}");
    for vendor_id in [0, 0x15b3] {
        let ece = ibv_ece {
            vendor_id,
            ..Default::default()
        };
        let set = link.qp.set_ece(ece);
        ensure!(set == Err(none), "ibv_set_ece of {vendor_id:#x}: {set:?}");
    }
    for op in [WR_RDMA_WRITE, WR_RDMA_READ, WR_SEND] {
        for flags in [0, 1] {
            let promise = link.qp.data_in_order(op, flags);
            ensure!(promise == 0, "operation {op}, flags {flags}: {promise}");
        }
    }
    Ok(())
}

/// Sets one size.
type Set = fn(&mut ibv_qp_cap, u32);

fn queue_sizes(env: &mut Env) -> Outcome<()> {
    let small = ibv_qp_cap {
        max_send_wr: 1,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 0,
    };
    let (wr, sge) = (env.attr.max_qp_wr as u32, env.attr.max_sge as u32);
    let fields: [(&str, u32, Set); 4] = [
        ("max_send_wr", wr, |c, n| c.max_send_wr = n),
        ("max_recv_wr", wr, |c, n| c.max_recv_wr = n),
        ("max_send_sge", sge, |c, n| c.max_send_sge = n),
        ("max_recv_sge", sge, |c, n| c.max_recv_sge = n),
    ];
    for (name, limit, set) in fields {
        let mut cap = small;
        set(&mut cap, limit);
        create(env, cap).during(format!("{name} {limit}"))?;
        for too_many in [limit + 1, u32::MAX / 2, u32::MAX] {
            set(&mut cap, too_many);
            match create(env, cap) {
                Err(e) if e.0 == libc::EINVAL || !env.vrnic => {}
                Err(e) => return Err(Failure(format!("{name} {too_many}: {e}"))),
                Ok(_) => {
                    return Err(Failure(format!(
                        "{name} {too_many} was granted, the limit is {limit}"
                    )));
                }
            }
        }
    }
    // All at once.
    let cap = ibv_qp_cap {
        max_send_wr: wr,
        max_recv_wr: wr,
        max_send_sge: sge,
        max_recv_sge: sge,
        max_inline_data: 0,
    };
    if env.vrnic {
        let qp = create(env, cap).during("everything at its limit")?;
        ensure!(
            qp.cap.max_send_wr >= wr && qp.cap.max_recv_sge >= sge,
            "granted {:?}",
            qp.cap
        );
        let mut cap = small;
        cap.max_inline_data = u32::MAX;
        ensure!(
            create(env, cap).is_err(),
            "4 GiB of inline data were granted"
        );
    }
    Ok(())
}

fn cq_sizes(env: &mut Env) -> Outcome<()> {
    let most = env.attr.max_cqe as u32;
    for cqe in [1, 2, 3, 1000, most] {
        let cq = Cq::new(&env.context, cqe).during(format!("a CQ of {cqe}"))?;
        ensure!(
            cq.capacity() >= cqe,
            "{} entries granted, {cqe} asked",
            cq.capacity()
        );
    }
    for cqe in [0, most + 1, i32::MAX as u32] {
        let refused = Cq::new(&env.context, cqe);
        ensure!(
            matches!(refused, Err(e) if e.0 == libc::EINVAL || !env.vrnic),
            "a CQ of {cqe}: {refused:?}"
        );
    }
    let vectors = env.context.completion_vectors();
    let refused = Cq::with(
        &env.context,
        16,
        0,
        None,
        vectors,
        crate::verbs::Interface::Legacy,
    );
    ensure!(
        matches!(refused, Err(e) if e.0 == libc::EINVAL),
        "vector {vectors}: {refused:?}"
    );
    Ok(())
}

fn most_sges(env: &mut Env) -> Outcome<()> {
    let most = env.attr.max_sge as usize;
    let mut config = LinkConfig::default();
    config.qp.cap.max_send_sge = most as u32;
    config.qp.cap.max_recv_sge = most as u32;
    let link = env.link(&config)?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    // Every second block, backwards.
    let sges: Vec<_> = (0..most).rev().map(|i| mr.sge(200 * i, 100)).collect();
    for i in 0..most {
        mr.memory().fill(200 * i, 100, 40, 100 * (most - 1 - i));
    }
    link.send(1, SendOp::Write(all.addr, all.rkey), &sges)?;
    link.expect(1, WC_SUCCESS)?;
    env.peer.expect_payload(0, 100 * most, 40)?;
    env.peer.fill(0, 100 * most, 41)?;
    let sges = &sges[..most.min(env.attr.max_sge_rd.max(1) as usize)];
    link.send(2, SendOp::Read(all.addr, all.rkey), sges)?;
    link.expect(2, WC_SUCCESS)?;
    for (n, i) in (0..most).rev().enumerate().take(sges.len()) {
        ensure!(
            mr.memory().check(200 * i, 100, 41, 100 * n).is_ok(),
            "element {n} of a READ is wrong"
        );
    }
    Ok(())
}

fn bad_regions(env: &mut Env) -> Outcome<()> {
    let memory = Arc::new(Memory::new(BUFFER).during("mmap")?);
    let refused = |offset: usize, len: usize, access: i32, errno: &[i32]| -> Outcome<()> {
        match Mr::of(&env.pd, &memory, offset, len, access) {
            Ok(_) => Err(Failure(format!(
                "{len:#x} bytes at {offset:#x} with access {access:#x} were registered"
            ))),
            Err(e) if errno.contains(&e.0) || !env.vrnic => Ok(()),
            Err(e) => Err(Failure(format!(
                "{len:#x} bytes at {offset:#x} with access {access:#x}: {e}"
            ))),
        }
    };
    // Nothing is mapped far behind, or up to the end of the address space.
    refused(1 << 46, 4096, ACCESS_ALL, &[libc::EFAULT, libc::ENOMEM])?;
    refused(
        0,
        usize::MAX / 2,
        ACCESS_ALL,
        &[libc::EFAULT, libc::ENOMEM, libc::EINVAL],
    )?;
    refused(
        0,
        usize::MAX,
        ACCESS_ALL,
        &[libc::EFAULT, libc::ENOMEM, libc::EINVAL],
    )?;
    // A peer that may write needs memory that its owner may write.
    refused(0, BUFFER, ACCESS_REMOTE_WRITE, &[libc::EINVAL])?;
    refused(0, BUFFER, ACCESS_REMOTE_ATOMIC, &[libc::EINVAL])?;
    refused(0, BUFFER, 1 << 19, &[libc::EINVAL, libc::EOPNOTSUPP])?;
    Mr::of(&env.pd, &memory, 0, BUFFER, ACCESS_LOCAL_WRITE).during("ibv_reg_mr")?;
    Ok(())
}

fn region_shapes(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let all = env.peer.all;
    let memory = Arc::new(Memory::new(1 << 20).during("mmap")?);
    for (offset, len) in [
        (0, 1),
        (4095, 1),
        (4095, 2),
        (1, 4096),
        (0, 4096),
        (100, 5000),
        (0, 1 << 20),
        (7, (1 << 20) - 7),
    ] {
        let mr = Mr::of(&env.pd, &memory, offset, len, ACCESS_ALL)
            .during(format!("{len} bytes at {offset}"))?;
        memory.fill(offset, len, len as u64, 0);
        let n = len.min(BUFFER);
        // The first and the last bytes that it has.
        for (id, at) in [(1, offset), (2, offset + len - n)] {
            link.send(id, SendOp::Write(all.addr, all.rkey), &[mr.sge(at, n)])?;
            link.expect(id, WC_SUCCESS)?;
            if at == offset {
                env.peer.expect_payload(0, n, len as u64)?;
            }
        }
    }
    // The same memory many times, and a region of half a million pages.
    let many: Vec<Mr> = (0..200)
        .map(|i| Mr::of(&env.pd, &memory, i, BUFFER, ACCESS_ALL))
        .collect::<Result<_, _>>()
        .during("200 regions of the same memory")?;
    let keys: std::collections::BTreeSet<u32> = many.iter().map(Mr::rkey).collect();
    ensure!(keys.len() == many.len(), "two regions share a key");
    Ok(())
}

/// They have keys, with which nobody gets at a byte.
fn empty_regions(env: &mut Env) -> Outcome<()> {
    let memory = Arc::new(Memory::new(BUFFER).during("mmap")?);
    let all = env.peer.all;
    // Inside of a page, at its beginning, and where nothing is mapped. Others need a page.
    let places: &[usize] = if env.vrnic {
        &[100, 0, 1 << 46]
    } else {
        &[100]
    };
    for &offset in places {
        let mr = Mr::of(&env.pd, &memory, offset, 0, ACCESS_ALL)
            .during(format!("0 bytes at {offset:#x}"))?;
        let link = env.link(&LinkConfig::default())?;
        let write = SendOp::Write(all.addr, all.rkey);
        let nothing = Sge::raw(mr.addr(offset), 0, mr.lkey());
        link.send(1, write, &[nothing])?;
        link.expect(1, WC_SUCCESS)?;
        link.send(2, write, &[Sge::raw(mr.addr(offset), 1, mr.lkey())])?;
        link.expect(2, WC_LOC_PROT_ERR)?;
        let (pair, local) = (Pair::new(env)?, env.buffer()?);
        pair.send(SendOp::Write(mr.addr(offset), mr.rkey()), &local, 0, 0)?;
        pair.done()?;
        pair.send(SendOp::Read(mr.addr(offset), mr.rkey()), &local, 0, 1)?;
        pair.ends[0].expect(1, WC_REM_ACCESS_ERR)?;
        mr.deregister().during("ibv_dereg_mr")?;
    }
    Ok(())
}

/// Objects of a kind (`pd`, `cq`, `mr`, `qp`) that processes have, as the kernel counts them.
fn of_processes(env: &Env, kind: &str) -> Outcome<usize> {
    let output = std::process::Command::new("rdma")
        .args(["resource", "show", kind])
        .output()
        .during("running rdma")?;
    ensure!(output.status.success(), "rdma resource show {kind} failed");
    let device = format!("dev {} ", env.context.name());
    let link = format!("link {}/", env.context.name());
    Ok(String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains(" pid "))
        .filter(|line| line.contains(&device) || line.contains(&link))
        .count())
}

/// Creates objects until one is refused, the `n`th by `make(n)`. Together with those that processes have already these
/// are `limit`, or nearly so on a device that counts otherwise.
fn fill_up<T>(
    env: &Env,
    kind: &str,
    limit: i32,
    make: impl Fn(usize) -> Result<T, Errno>,
) -> Outcome<()> {
    const OTHERS: usize = 64;
    let limit = limit as usize;
    let before = of_processes(env, kind)?;
    let mut held = Vec::new();
    let error = loop {
        match make(held.len()) {
            Ok(object) => held.push(object),
            Err(e) => break e,
        }
        ensure!(held.len() <= limit, "more than {limit} of {kind} exist");
    };
    println!(
        "    {} and {before} of {limit} {kind}, then {error}",
        held.len()
    );
    ensure!(
        held.len() + before == limit || !env.vrnic && held.len() + OTHERS >= limit,
        "{} and {before} of {limit} {kind}: {error}",
        held.len()
    );
    ensure!(
        error.0 == libc::ENOMEM || !env.vrnic,
        "{kind} one too many: {error}"
    );
    drop(held);
    make(0).during(format!("a {kind} after all were destroyed"))?;
    Ok(())
}

fn pd_count(env: &mut Env) -> Outcome<()> {
    if !env.slow {
        return Ok(());
    }
    fill_up(env, "pd", env.attr.max_pd, |_| Pd::new(&env.context))
}

fn cq_count(env: &mut Env) -> Outcome<()> {
    if !env.slow {
        return Ok(());
    }
    fill_up(env, "cq", env.attr.max_cq, |_| Cq::new(&env.context, 1))
}

fn srq_sizes(env: &mut Env) -> Outcome<()> {
    let (wr, sge) = (env.attr.max_srq_wr as u32, env.attr.max_srq_sge as u32);
    ensure!(
        env.attr.max_srq > 0 && wr >= 1024 && sge >= 16 || !env.vrnic,
        "SRQs: {}, of {wr} receives with {sge} elements",
        env.attr.max_srq
    );
    for (max_wr, max_sge) in [(1, 1), (wr, 1), (1, sge), (wr, sge)] {
        let srq = Srq::new(&env.pd, max_wr, max_sge).during(format!(
            "an SRQ of {max_wr} receives with {max_sge} elements"
        ))?;
        let given = srq.query().during("ibv_query_srq")?;
        ensure!(
            given.max_wr >= max_wr && given.max_sge >= max_sge,
            "{given:?}, not {max_wr} with {max_sge}"
        );
    }
    let most = u32::MAX;
    for (max_wr, max_sge) in [(0, 1), (wr + 1, 1), (1, sge + 1), (most, 1), (1, most)] {
        let refused = Srq::new(&env.pd, max_wr, max_sge);
        ensure!(
            matches!(refused, Err(e) if e.0 == libc::EINVAL || !env.vrnic),
            "an SRQ of {max_wr} receives with {max_sge} elements: {refused:?}"
        );
    }
    Ok(())
}

fn srq_count(env: &mut Env) -> Outcome<()> {
    if !env.slow {
        return Ok(());
    }
    fill_up(env, "srq", env.attr.max_srq, |_| Srq::new(&env.pd, 1, 1))
}

fn mr_count(env: &mut Env) -> Outcome<()> {
    if !env.slow {
        return Ok(());
    }
    let memory = Arc::new(Memory::new(4096).during("mmap")?);
    fill_up(env, "mr", env.attr.max_mr, |_| {
        Mr::of(&env.pd, &memory, 0, 4096, 0)
    })
}

fn qp_count(env: &mut Env) -> Outcome<()> {
    /// Fewer than a context has doorbells for.
    const OF_A_CONTEXT: usize = 16_000;

    if !env.slow {
        return Ok(());
    }
    let config = QpConfig::smallest();
    let places = (0..=env.attr.max_qp as usize / OF_A_CONTEXT)
        .map(|_| {
            let context = Context::open(Some(env.context.name()))?;
            Ok((Pd::new(&context)?, Cq::new(&context, 16)?))
        })
        .collect::<Result<Vec<_>, Errno>>()
        .during("opening the device again")?;
    fill_up(env, "qp", env.attr.max_qp, |n| {
        let (pd, cq) = &places[n / OF_A_CONTEXT];
        Qp::new(pd, cq, cq, &config)
    })
}

fn thousand(env: &mut Env) -> Outcome<()> {
    let count = 1000.min(env.attr.max_qp as usize / 2);
    let mr = env.buffer()?;
    mr.memory().fill(0, 64, 8, 0);
    let mut links = Vec::new();
    for _ in 0..count {
        let mut config = LinkConfig::default();
        config.qp.cap.max_send_wr = 4;
        config.qp.cap.max_recv_wr = 4;
        links.push(env.link(&config)?);
    }
    let all = env.peer.all;
    for round in 0..3 {
        for (n, link) in links.iter().enumerate() {
            link.send(
                n as u64,
                SendOp::Write(all.addr + 8 * (n as u64 % 1000), all.rkey),
                &[mr.sge(0, 8)],
            )?;
        }
        for (n, link) in links.iter().enumerate() {
            link.expect(n as u64, WC_SUCCESS)
                .map_err(|e| Failure(format!("round {round}: {e}")))?;
        }
    }
    Ok(())
}

/// A process opens the device many times, and each of its contexts works.
fn contexts(env: &mut Env) -> Outcome<()> {
    /// As many as there are doorbell pages, less some for other processes. Fewer take less time.
    const MOST: usize = 4000;
    const SOME: usize = 300;

    if !env.vrnic {
        return Ok(());
    }
    open_files(3 * MOST as u64 + 1000).during("raising the number of open files")?;
    let wanted = if env.slow { usize::MAX } else { SOME };
    for _ in 0..2 {
        let mut held = Vec::new();
        while held.len() < wanted {
            match Context::open(Some(env.context.name())) {
                Ok(context) => held.push(context),
                Err(Errno(libc::ENOMEM | libc::ENOSPC)) if held.len() >= MOST => break,
                Err(e) => return Err(Failure(format!("context {}: {e}", held.len()))),
            }
        }
        for context in held.iter().step_by(SOME / 3).chain(held.last()) {
            let pd = Pd::new(context).during("ibv_alloc_pd")?;
            let own = Loop::new(&pd, env.gid, Interface::Legacy)?;
            own.mr.memory().fill(0, 64, 9, 0);
            let write = SendOp::Write(own.mr.addr(BUFFER), own.mr.rkey());
            own.qps[0]
                .post_send(&[SendWr::new(1, write, &[own.mr.sge(0, 64)])])
                .map_err(|e| Failure(format!("posting: {}", e.error)))?;
            expect(&own.cq, 1, WC_SUCCESS)?;
            same(&own.mr, BUFFER, 64, 9)?;
        }
        println!("    {} contexts", held.len());
        for context in held {
            context.close().during("closing a context")?;
        }
    }
    Ok(())
}
