// SPDX-License-Identifier: GPL-2.0

//! Tests of events and the places of objects.

use crate::testing::prelude::*;

#[kunit_tests(rdma_events)]
mod cases {
    use super::*;

    use kernel::time::delay::udelay;

    use crate::event::completion::RUNS_IN_A_ROW;

    /// Counts events that reached a handler. The tests of a suite run one after another.
    static EVENTS: Atomic<u32> = Atomic::new(0);

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn count_completion(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        EVENTS.store(EVENTS.load(Relaxed) + 1, Relaxed);
    }

    /// # Safety
    ///
    /// `event` must be valid.
    unsafe extern "C" fn count_event(event: *mut bindings::ib_event, _context: *mut c_void) {
        // SAFETY: The dispatcher passes an event.
        let event = unsafe { (*event).event };
        EVENTS.store(EVENTS.load(Relaxed) + 100 + event, Relaxed);
    }

    fn events() -> u32 {
        let events = EVENTS.load(Relaxed);
        EVENTS.store(0, Relaxed);
        events
    }

    /// Makes events find `object` by `number` as long as the result exists.
    fn list<T: Numbered>(
        new_place: NewPlace<T>,
        number: u32,
        object: NonNull<T>,
        notice: T::Notice,
    ) -> Result<Place<T>> {
        let (place, unpublished) = new_place.assign(number, object, notice);
        unpublished.publish()?;
        Ok(place)
    }

    #[test]
    fn events_reach_the_shared_receive_queue_they_name() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut srq = boxed::<bindings::ib_srq>()?;
        srq.event_handler = Some(count_event);
        let srq = NonNull::from(&mut *srq);

        events();
        let place = list(dispatcher.new_srq_place()?, 7, srq, InUse::new(true))?;
        assert!(dispatcher.srq_event(7, SrqEvent::LimitReached));
        assert_eq!(events(), 100 + SrqEvent::LimitReached.raw());
        assert!(!dispatcher.srq_event(8, SrqEvent::Error));
        drop(place);
        assert!(!dispatcher.srq_event(7, SrqEvent::Error));
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn events_reach_users_of_the_kernel_that_use_their_object() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut qp = boxed::<bindings::ib_qp>()?;
        qp.event_handler = Some(count_event);
        let qp = NonNull::from(&mut *qp);

        events();
        let place = list(dispatcher.new_qp_place()?, 7, qp, InUse::new(false))?;
        assert!(!dispatcher.qp_event(7, QpEvent::Fatal));
        assert_eq!(events(), 0);
        place.begin_use();
        assert!(dispatcher.qp_event(7, QpEvent::Fatal));
        assert_eq!(events(), 100 + QpEvent::Fatal.raw());
        Ok(())
    }

    #[test]
    fn events_reach_the_queue_they_name() -> Result {
        let objects = Objects::new(2)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        cq.event_handler = Some(count_event);
        let cq = NonNull::from(&mut *cq);

        events();
        assert_eq!(dispatcher.new_cq_place(2).err(), Some(EINVAL));
        let place = list(dispatcher.new_cq_place(1)?, 7, cq, Notice::new(true))?;
        assert_eq!(place.number(), 7);
        assert!(dispatcher.complete(1, 7));
        assert_eq!(events(), 1);
        assert!(!dispatcher.complete(0, 7));
        assert!(!dispatcher.complete(1, 8));
        assert!(!dispatcher.complete(2, 7));
        assert_eq!(events(), 0);

        assert!(dispatcher.cq_event(7, CqEvent::Error));
        assert_eq!(events(), 100 + bindings::ib_event_type_IB_EVENT_CQ_ERR);

        drop(place);
        assert!(!dispatcher.complete(1, 7) && !dispatcher.cq_event(7, CqEvent::Error));
        assert_eq!(events(), 0);
        Ok(())
    }

    /// Calls `test` with queue 7, a queue of the kernel, and its dispatcher. Its user has not been
    /// notified of anything yet.
    fn with_kernel_queue(
        test: impl FnOnce(&Dispatcher, &Place<bindings::ib_cq>) -> Result,
    ) -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);
        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(false))?;
        events();
        test(dispatcher, &place)
    }

    #[test]
    fn the_kernel_is_told_what_it_asked_for() -> Result {
        with_kernel_queue(|dispatcher, place| {
            let all_and_one = || {
                dispatcher.complete_all();
                dispatcher.complete(0, 7)
            };

            // The user has not asked for an event.
            place.add_queue_pair();
            assert!(all_and_one());
            assert_eq!(events(), 0);
            // The user is notified once.
            place.arm();
            place.arm();
            assert!(all_and_one());
            assert_eq!(events(), 1);
            place.arm();
            assert!(all_and_one());
            assert_eq!(events(), 1);
            Ok(())
        })
    }

    #[test]
    fn the_kernel_is_told_while_there_are_queue_pairs() -> Result {
        with_kernel_queue(|dispatcher, place| {
            // `ib_alloc_cq` does this before the queue can take events.
            place.arm();
            dispatcher.complete_all();
            assert!(dispatcher.complete(0, 7));
            assert_eq!(events(), 0);
            // The first queue pair releases the event that was held back, but no more.
            place.add_queue_pair();
            wait_until(|| EVENTS.load(Relaxed) != 0)?;
            place.add_queue_pair();
            fsleep(Delta::from_millis(50));
            assert_eq!(events(), 1);

            // The last queue pair goes away, as before `ib_free_cq`.
            place.arm();
            place.remove_queue_pair();
            place.remove_queue_pair();
            assert!(dispatcher.complete(0, 7));
            assert_eq!(events(), 0);
            place.add_queue_pair();
            wait_until(|| events() == 1)
        })
    }

    #[test]
    fn each_queue_gets_what_was_held_back() -> Result {
        const QUEUES: u32 = 50;

        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);
        let mut places = KVec::new();
        for number in 0..QUEUES {
            let place = list(dispatcher.new_cq_place(0)?, number, cq, Notice::new(false))?;
            place.arm();
            places.push(place, GFP_KERNEL)?;
        }
        dispatcher.complete_all();
        events();
        // All but the last have queue pairs.
        for place in places.iter().take(QUEUES as usize - 1) {
            place.add_queue_pair();
        }
        wait_until(|| EVENTS.load(Relaxed) == QUEUES - 1)?;
        // Each is told again.
        for place in &places {
            place.arm();
            assert!(dispatcher.complete(0, place.number()));
        }
        wait_until(|| EVENTS.load(Relaxed) == 2 * (QUEUES - 1))
    }

    /// The task that ran the handler last.
    static HANDLER_TASK: Atomic<usize> = Atomic::new(0);

    fn current() -> usize {
        // CAST: Not used as an address.
        Task::current_raw() as usize
    }

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn note_task(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        HANDLER_TASK.store(current(), Relaxed);
    }

    #[test]
    fn a_verb_runs_no_handler_of_its_caller() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(note_task);
        let cq = NonNull::from(&mut *cq);
        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(false))?;
        // The soft interrupt that runs the handler may interrupt this very task, but not each time.
        for attempt in 0..100 {
            HANDLER_TASK.store(0, Relaxed);
            place.arm();
            assert!(dispatcher.complete(0, 7));
            assert_eq!(HANDLER_TASK.load(Relaxed), 0);
            // The verb that creates a queue pair does this. Its caller may hold locks that the
            // handler takes.
            place.add_queue_pair();
            wait_until(|| HANDLER_TASK.load(Relaxed) != 0)?;
            place.remove_queue_pair();
            if HANDLER_TASK.load(Relaxed) != current() {
                break;
            }
            assert!(attempt < 99);
        }

        // An event that is late does not outlive its queue.
        place.arm();
        assert!(dispatcher.complete(0, 7));
        place.add_queue_pair();
        drop(place);
        HANDLER_TASK.store(0, Relaxed);
        fsleep(Delta::from_millis(50));
        assert_eq!(HANDLER_TASK.load(Relaxed), 0);
        Ok(())
    }

    /// Number of events that were raised for the queue of [`slow_and_alone`].
    static RAISED: Atomic<u32> = Atomic::new(0);

    /// How many of them its handler has seen when it began last.
    static SEEN: Atomic<u32> = Atomic::new(0);

    static RUNNING: Atomic<u32> = Atomic::new(0);

    static OVERLAPPED: Atomic<bool> = Atomic::new(false);

    /// Notes whether it runs twice at the same time, and which events happened before it began.
    ///
    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn slow_and_alone(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        if RUNNING.fetch_add(1, Full) != 0 {
            OVERLAPPED.store(true, Relaxed);
        }
        SEEN.store(RAISED.load(Acquire), Relaxed);
        for _ in 0..5 {
            udelay(Delta::from_millis(1));
        }
        RUNNING.fetch_sub(1, Full);
    }

    #[test]
    fn a_queue_has_one_handler_at_a_time_and_loses_no_event() -> Result {
        const THREADS: u32 = 3;
        const ROUNDS: u32 = 20;
        static DONE: Atomic<u32> = Atomic::new(0);

        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(slow_and_alone);
        let cq = NonNull::from(&mut *cq);
        for of_process in [true, false] {
            RAISED.store(0, Relaxed);
            SEEN.store(0, Relaxed);
            DONE.store(0, Relaxed);
            OVERLAPPED.store(false, Relaxed);
            let notice = Notice::new(of_process);
            let place = Arc::new(
                list(dispatcher.new_cq_place(0)?, 7, cq, notice)?,
                GFP_KERNEL,
            )?;
            place.add_queue_pair();
            for _ in 0..THREADS {
                let (theirs, queue) = (dispatcher.clone(), place.clone());
                workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
                    for _ in 0..ROUNDS {
                        RAISED.fetch_add(1, Full);
                        queue.arm();
                        theirs.complete(0, 7);
                        fsleep(Delta::from_millis(1));
                    }
                    drop(queue);
                    DONE.fetch_add(1, Full);
                })?;
            }
            wait_until(|| DONE.load(Acquire) == THREADS)?;
            assert!(!OVERLAPPED.load(Relaxed));
            assert_eq!(SEEN.load(Relaxed), THREADS * ROUNDS);
        }
        Ok(())
    }

    #[test]
    fn only_the_kernel_is_told_again() -> Result {
        with_kernel_queue(|dispatcher, kernel| {
            let mut cq = boxed::<bindings::ib_cq>()?;
            cq.comp_handler = Some(count_completion);
            let cq = NonNull::from(&mut *cq);
            let _process = list(dispatcher.new_cq_place(0)?, 8, cq, Notice::new(true))?;
            kernel.add_queue_pair();
            for _ in 0..3 {
                kernel.arm();
                dispatcher.complete_kernel();
                assert_eq!(events(), 1);
            }
            kernel.arm();
            dispatcher.complete_all();
            assert_eq!(events(), 2);
            Ok(())
        })
    }

    /// Dispatches completion events to all queues from inside a handler. The context is the
    /// dispatcher.
    ///
    /// # Safety
    ///
    /// `context` must be a dispatcher.
    unsafe extern "C" fn complete_others(_cq: *mut bindings::ib_cq, context: *mut c_void) {
        EVENTS.store(EVENTS.load(Relaxed) + 1, Relaxed);
        if EVENTS.load(Relaxed) < 3 {
            // SAFETY: Guaranteed by the caller.
            unsafe { (*context.cast::<Dispatcher>()).complete_all() };
        }
    }

    #[test]
    fn handlers_may_call_the_dispatcher() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(complete_others);
        cq.cq_context = core::ptr::from_ref::<Dispatcher>(dispatcher)
            .cast_mut()
            .cast();
        let cq = NonNull::from(&mut *cq);

        events();
        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(true))?;
        assert!(dispatcher.complete(0, 7));
        // The handler also calls itself.
        assert_eq!(events(), 3);
        drop(place);
        Ok(())
    }

    /// How often the handler below has run: at all, and in the thread of the test.
    static RUNS: Atomic<usize> = Atomic::new(0);
    static OWN_RUNS: Atomic<usize> = Atomic::new(0);
    /// The thread of the test.
    static OWN_TASK: Atomic<usize> = Atomic::new(0);
    const ALL_RUNS: usize = 50;

    /// Raises the next event of its own queue.
    ///
    /// # Safety
    ///
    /// `context` must be a [`Dispatcher`].
    unsafe extern "C" fn complete_itself(_cq: *mut bindings::ib_cq, context: *mut c_void) {
        if current() == OWN_TASK.load(Relaxed) {
            OWN_RUNS.fetch_add(1, Relaxed);
        }
        if RUNS.fetch_add(1, Relaxed) + 1 < ALL_RUNS {
            // SAFETY: Guaranteed by the caller.
            unsafe { (*context.cast::<Dispatcher>()).complete(0, 7) };
        }
    }

    #[test]
    fn events_without_end_do_not_keep_who_delivers_them() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(complete_itself);
        cq.cq_context = core::ptr::from_ref::<Dispatcher>(dispatcher)
            .cast_mut()
            .cast();
        let cq = NonNull::from(&mut *cq);

        OWN_TASK.store(current(), Relaxed);
        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(true))?;
        // The soft interrupt that goes on may interrupt this very task, but not each time.
        for attempt in 0..100 {
            RUNS.store(0, Relaxed);
            OWN_RUNS.store(0, Relaxed);
            assert!(dispatcher.complete(0, 7));
            let own_runs = OWN_RUNS.load(Relaxed);
            // Nor is any event lost.
            wait_until(|| RUNS.load(Relaxed) == ALL_RUNS)?;
            if own_runs == RUNS_IN_A_ROW {
                break;
            }
            assert!(attempt < 99);
        }
        // Whoever gives up the queue waits for the handler, whoever runs it, and ends this.
        RUNS.store(0, Relaxed);
        assert!(dispatcher.complete(0, 7));
        drop(place);
        let runs = RUNS.load(Relaxed);
        assert!(runs > RUNS_IN_A_ROW);
        fsleep(Delta::from_millis(20));
        assert_eq!(RUNS.load(Relaxed), runs);
        Ok(())
    }

    /// Whether the slow handler is running.
    static COMPLETION_RUNS: Atomic<bool> = Atomic::new(false);

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn complete_slowly(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        COMPLETION_RUNS.store(true, Relaxed);
        fsleep(Delta::from_millis(100));
        COMPLETION_RUNS.store(false, Relaxed);
    }

    #[test]
    fn who_gives_up_a_queue_waits_for_its_handler() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(complete_slowly);
        let cq = NonNull::from(&mut *cq);
        let begin = || -> Result {
            let theirs = dispatcher.clone();
            workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
                theirs.complete(0, 7);
            })?;
            wait_until(|| COMPLETION_RUNS.load(Relaxed))
        };

        // The last queue pair goes away, so the user can no longer be notified.
        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(false))?;
        place.add_queue_pair();
        place.arm();
        begin()?;
        place.remove_queue_pair();
        assert!(!COMPLETION_RUNS.load(Relaxed));
        drop(place);

        let place = list(dispatcher.new_cq_place(0)?, 7, cq, Notice::new(true))?;
        begin()?;
        drop(place);
        assert!(!COMPLETION_RUNS.load(Relaxed));
        Ok(())
    }

    #[test]
    fn all_who_share_receives_are_told_of_the_last() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut srq = boxed::<bindings::ib_srq>()?;
        let mut own = boxed::<bindings::ib_qp>()?;
        own.event_handler = Some(count_event);
        let mut sharing = boxed::<bindings::ib_qp>()?;
        sharing.event_handler = Some(count_event);
        sharing.srq = &mut *srq;
        let (own, sharing) = (NonNull::from(&mut *own), NonNull::from(&mut *sharing));

        events();
        let mut places = KVec::new();
        for (number, qp) in [(1, own), (2, sharing), (3, own), (u32::MAX, sharing)] {
            places.push(
                list(dispatcher.new_qp_place()?, number, qp, InUse::new(true))?,
                GFP_KERNEL,
            )?;
        }
        dispatcher.last_receive_all();
        assert_eq!(events(), 2 * (100 + QpEvent::LastWqeReached.raw()));
        drop(places);
        dispatcher.last_receive_all();
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn every_queue_is_completed_once() -> Result {
        let objects = Objects::new(2)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);

        events();
        dispatcher.complete_all();
        assert_eq!(events(), 0);
        let mut places = KVec::new();
        for (vector, number) in [(0, 0), (0, 1), (0, 900), (0, u32::MAX), (1, 5)] {
            let new_place = dispatcher.new_cq_place(vector)?;
            places.push(list(new_place, number, cq, Notice::new(true))?, GFP_KERNEL)?;
        }
        dispatcher.complete_all();
        assert_eq!(events(), 5);
        drop(places);
        dispatcher.complete_all();
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn a_number_has_one_owner() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let (mut old, mut new) = (boxed::<bindings::ib_qp>()?, boxed::<bindings::ib_qp>()?);
        let (old, new) = (NonNull::from(&mut *old), NonNull::from(&mut *new));

        let place = list(dispatcher.new_qp_place()?, 9, old, InUse::new(true))?;
        // The hardware reuses the number although it was not told to forget the owner.
        let refused = list(dispatcher.new_qp_place()?, 9, new, InUse::new(true));
        assert_eq!(refused.err(), Some(EIO));
        assert_eq!(found(dispatcher, 9), Some(old));
        drop(place);
        assert!(dispatcher.find_qp(9).is_none());
        let _place = list(dispatcher.new_qp_place()?, 9, new, InUse::new(true))?;
        assert_eq!(found(dispatcher, 9), Some(new));
        Ok(())
    }

    /// State of [`a_number_may_come_back_early`], for handlers that run concurrently.
    static HANDLER_RUNS: Atomic<bool> = Atomic::new(false);

    static OLD_IS_GONE: Atomic<bool> = Atomic::new(false);

    /// Waits until the number of its queue pair is wanted by another one, and records whether the
    /// queue pair still exists.
    ///
    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn handle_slowly(_event: *mut bindings::ib_event, _context: *mut c_void) {
        HANDLER_RUNS.store(true, Relaxed);
        fsleep(Delta::from_millis(100));
        if !OLD_IS_GONE.load(Relaxed) {
            HANDLER_RUNS.store(false, Relaxed);
        }
    }

    #[test]
    fn a_number_may_come_back_early() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let (mut old, mut new) = (boxed::<bindings::ib_qp>()?, boxed::<bindings::ib_qp>()?);
        old.event_handler = Some(handle_slowly);
        new.event_handler = Some(count_event);
        let (old, new) = (NonNull::from(&mut *old), NonNull::from(&mut *new));

        events();
        HANDLER_RUNS.store(false, Relaxed);
        OLD_IS_GONE.store(false, Relaxed);
        let place = list(dispatcher.new_qp_place()?, 9, old, InUse::new(true))?;
        place.begin_end();

        // Destroys the queue pair while an event of it is being handled.
        let theirs = dispatcher.clone();
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            theirs.qp_event(9, QpEvent::Fatal);
        })?;
        wait_until(|| HANDLER_RUNS.load(Relaxed))?;
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            drop(place);
            OLD_IS_GONE.store(true, Relaxed);
        })?;

        // Creates another queue pair, to which the hardware assigns the number.
        let place = list(dispatcher.new_qp_place()?, 9, new, InUse::new(true))?;
        // The old queue pair existed until its handler had returned.
        assert!(!HANDLER_RUNS.load(Relaxed));
        assert_eq!(found(dispatcher, 9), Some(new));
        assert!(dispatcher.qp_event(9, QpEvent::Fatal));
        assert_eq!(events(), 100 + bindings::ib_event_type_IB_EVENT_QP_FATAL);
        drop(place);
        assert!(dispatcher.find_qp(9).is_none() && !dispatcher.qp_event(9, QpEvent::Fatal));
        Ok(())
    }

    #[test]
    fn an_object_that_goes_has_its_number_until_its_handler_returned() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let (mut old, mut new) = (boxed::<bindings::ib_qp>()?, boxed::<bindings::ib_qp>()?);
        old.event_handler = Some(handle_slowly);
        new.event_handler = Some(count_event);
        let (old, new) = (NonNull::from(&mut *old), NonNull::from(&mut *new));

        HANDLER_RUNS.store(false, Relaxed);
        OLD_IS_GONE.store(false, Relaxed);
        let place = list(dispatcher.new_qp_place()?, 9, old, InUse::new(true))?;
        place.begin_end();
        let theirs = dispatcher.clone();
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            theirs.qp_event(9, QpEvent::Fatal);
        })?;
        wait_until(|| HANDLER_RUNS.load(Relaxed))?;
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            drop(place);
            OLD_IS_GONE.store(true, Relaxed);
        })?;
        // Destruction has begun: events no longer find the object.
        wait_until(|| dispatcher.find_qp(9).is_none())?;
        let _place = list(dispatcher.new_qp_place()?, 9, new, InUse::new(true))?;
        assert!(!HANDLER_RUNS.load(Relaxed));
        assert_eq!(found(dispatcher, 9), Some(new));
        Ok(())
    }

    /// Returns the queue pair that completions find by that number.
    fn found(dispatcher: &Dispatcher, number: u32) -> Option<NonNull<bindings::ib_qp>> {
        dispatcher.find_qp(number).map(|entry| entry.object())
    }

    #[test]
    fn without_a_device_nobody_is_told() -> Result {
        assert!(!Objects::new(1)?.dispatcher().device_fatal());
        Ok(())
    }

    #[test]
    fn completions_find_their_queue_pair() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut qp = boxed::<bindings::ib_qp>()?;
        let qp = NonNull::from(&mut *qp);
        let mut room = core::array::from_fn::<_, 4, _>(|_| bindings::ib_wc::default());
        let completion = Completion {
            qpn: 5,
            status: Status::Success,
            opcode: Opcode::Receive,
            vendor_error: 0,
            byte_length: 104,
            extra: Some(Extra::Immediate(0x0102_0304)),
            source: Some(Source {
                qpn: 6,
                pkey_index: 0,
                service_level: 1,
                header: Some(NetworkHeader::Ipv4),
                mac: Some([1, 2, 3, 4, 5, 6]),
                vlan: None,
                lid: (0x1234, 3),
            }),
            checksums_ok: true,
        };

        let mut cq = boxed::<bindings::ib_cq>()?;
        let (cq, receives) = (&raw mut *cq, Poster::new());
        // Receives come from a shared queue.
        let completes = Completes {
            send_cq: cq,
            recv_cq: cq,
            receives: Some(receives),
        };
        let in_use = InUse::of_queue_pair(true, completes);
        let place = list(dispatcher.new_qp_place()?, 5, qp, in_use)?;
        place.set_port(2);
        let request = |poster, is_receive, position| Continuation {
            wr_id: 0x1122_3344_5566_7788,
            poster,
            is_receive,
            position,
            length: 104,
        };
        let own = place.poster();
        // SAFETY: The array has room for four completions.
        let mut out = unsafe { Completions::new(dispatcher, cq, room.as_mut_ptr(), 4) };
        assert_eq!(out.push(request(receives, true, 0), &completion), Ok(()));
        let other = Completion {
            qpn: 4,
            ..completion
        };
        assert!(out.push(request(receives, true, 0), &other).is_err());
        assert!(out.push(request(receives, false, 1), &completion).is_err());
        assert!(out.push(request(own, true, 1), &completion).is_err());
        let send = Completion {
            opcode: Opcode::Send,
            extra: None,
            source: None,
            checksums_ok: false,
            ..completion
        };
        assert!(out.push(request(receives, false, 1), &send).is_err());
        assert_eq!(out.push(request(own, false, 2), &send), Ok(()));
        // Earlier requests come too late.
        for late in [1, 2] {
            let back = out.push(request(own, false, late), &send);
            assert_eq!(back, Err(request(own, false, late)));
        }
        // More bytes than the elements can hold.
        let overrun = Completion {
            byte_length: 105,
            ..completion
        };
        assert_eq!(out.push(request(receives, true, 0), &overrun), Ok(()));
        // The data of an RDMA write goes elsewhere.
        let written = Completion {
            opcode: Opcode::ReceiveWriteWithImmediate,
            ..overrun
        };
        assert_eq!(out.push(request(receives, true, 0), &written), Ok(()));
        assert!(out.is_full());
        // A request for whose completion there is no room is returned.
        let back = out.push(request(receives, true, 0), &completion);
        assert_eq!(back, Err(request(receives, true, 0)));
        assert_eq!(out.len(), 4);
        drop(place);

        let [first, second, third, fourth] = room;
        assert_eq!(first.qp, qp.as_ptr());
        // SAFETY: All members of the union are plain words.
        let wr_id = *unsafe { crate::compat::member(&first.__bindgen_anon_1.wr_id) };
        assert_eq!(wr_id, 0x1122_3344_5566_7788);
        // SAFETY: All members of the union are plain words.
        let data = *unsafe { crate::compat::member(&first.ex.imm_data) };
        assert_eq!(data.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((first.byte_len, first.src_qp, first.sl), (104, 6, 1));
        assert_eq!(first.smac, [1, 2, 3, 4, 5, 6]);
        assert_eq!((first.port_num, second.port_num), (2, 2));
        assert_eq!((first.slid, first.dlid_path_bits), (0x1234, 3));
        let flags = bindings::ib_wc_flags_IB_WC_GRH
            | bindings::ib_wc_flags_IB_WC_WITH_IMM
            | bindings::ib_wc_flags_IB_WC_WITH_SMAC
            | bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE
            | bindings::ib_wc_flags_IB_WC_IP_CSUM_OK;
        assert_eq!(first.wc_flags, flags as c_int);
        assert_eq!(second.wc_flags, 0);
        assert_eq!(third.status, bindings::ib_wc_status_IB_WC_LOC_LEN_ERR);
        assert_eq!((third.byte_len, third.wc_flags, third.src_qp), (0, 0, 0));
        assert_eq!(fourth.status, bindings::ib_wc_status_IB_WC_SUCCESS);
        assert_eq!(fourth.byte_len, 105);
        Ok(())
    }
}
