// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests end when they are posted, and each completes once: the kernel calls a function
//! through what they contain.

#![forbid(unsafe_code)]

use driver::{
    Call,
    Driver,
    Object, //
};
use kernel::prelude::*;
use rdma::{
    wc::{
        Completion,
        Completions, //
    },
    wr::{
        Continuation,
        Operation,
        ReceiveRequests,
        SendRequest,
        SendRequests,
        Sge, //
    },
    Ah,
    Qp,
    Unsupported, //
};

type Requests<'a> = SendRequests<'a, Driver>;

/// Looks at the elements of a request that its user may have freed.
pub fn elements_after_post(requests: &mut Requests<'_>) -> Result {
    while let Some(request) = requests.take() {
        let request = request?;
        let elements = request.elements();
        let _length = elements.len();
        let _posted = request.post(); //~ E0505
        #[cfg(refused)]
        let _length = elements.len();
    }
    Ok(())
}

/// As above, for receives.
pub fn receive_elements_after_post(requests: &mut ReceiveRequests<'_>) -> Result {
    requests.try_for_each(|request| {
        let elements = request.elements();
        let _length = elements.len();
        let _posted = request.post(); //~ E0505
        #[cfg(refused)]
        let _length = elements.len();
        Ok(())
    })
}

/// Looks at the operation of a posted request, which may refer to a freed address handle or region.
pub fn operation_after_post(request: SendRequest<'_, Driver>) -> Continuation {
    let operation = request.operation();
    let _is_send = matches!(operation, Operation::Send);
    let posted = request.post(); //~ E0505
    #[cfg(refused)]
    let _is_send = matches!(operation, Operation::Send);
    posted
}

/// Posts a request twice.
pub fn post_twice(request: SendRequest<'_, Driver>) {
    let _first = request.post();
    #[cfg(refused)]
    let _second = request.post(); //~ E0382
}

/// Leaves a request for later, when its user may have freed it.
pub fn keep_request(call: &Call<'_>, requests: &mut Requests<'_>) -> Result {
    if let Some(request) = requests.take() {
        let request = request?;
        #[cfg(refused)]
        call.data().keep(request); //~ lifetime
        #[cfg(not(refused))]
        call.data().keep(request.post());
    }
    Ok(())
}

/// As above, in the closure for each request.
pub fn keep_request_of_closure(call: &Call<'_>, requests: &mut Requests<'_>) -> Result {
    requests.try_for_each(|request| {
        #[cfg(refused)]
        call.data().keep(request); //~ E0521
        #[cfg(not(refused))]
        call.data().keep(request.post());
        Ok(())
    })
}

/// Leaves the elements of a request for later.
pub fn keep_elements(call: &Call<'_>, request: &SendRequest<'_, Driver>) {
    #[cfg(refused)]
    call.data().keep(request.elements()); //~ lifetime
}

/// Takes the next request while it holds the last one.
pub fn two_requests(requests: &mut Requests<'_>) {
    let first = requests.take();
    #[cfg(refused)]
    let second = requests.take(); //~ E0499
    drop(first);
    #[cfg(refused)]
    drop(second);
}

/// Passes a request to another thread.
pub fn pass_request(request: SendRequest<'_, Driver>) {
    #[cfg(refused)]
    driver::send(request); //~ E0277: between threads
    #[cfg(not(refused))]
    driver::send(request.post());
}

/// Invents a scatter/gather element.
pub fn forge_element() -> Option<Sge> {
    #[cfg(refused)]
    return Some(Sge(Default::default())); //~ E0423
    None
}

/// Completes a request twice.
pub fn complete_twice(out: &mut Completions<'_>, posted: Continuation, completion: &Completion) {
    let _ = out.push(posted, completion);
    #[cfg(refused)]
    let _ = out.push(posted, completion); //~ E0382
}

/// Copies a request, to complete it twice.
pub fn copy(posted: &Continuation) {
    #[cfg(refused)]
    let _copy = Continuation::clone(posted); //~ E0277: Clone
}

/// Writes completions to the array of a poller that has returned.
pub fn keep_completions(call: &Call<'_>, out: &mut Completions<'_>) {
    let _room = !out.is_full();
    #[cfg(refused)]
    call.data().keep(out); //~ lifetime
}

/// Keeps the queue pair of a post without keeping it alive.
pub fn keep_queue_pair(call: &Call<'_>, qp: &Qp<Object>) {
    call.data().keep(qp.number());
    #[cfg(refused)]
    call.data().keep(qp); //~ lifetime
}

/// Keeps the address handle of a datagram.
pub fn keep_handle(call: &Call<'_>, ah: &Ah<Unsupported<Driver>>) {
    #[cfg(refused)]
    call.data().keep(ah); //~ lifetime
}
