// SPDX-License-Identifier: GPL-2.0

//! Tests of the interface that drivers add for processes.

use super::*;

#[kunit_tests(rdma_uapi)]
mod cases {
    use super::*;
    use crate::testing::{
        driver::{
            Object,
            TestDriver, //
        },
        objects::Pair,
        process::{
            ProcessMemory,
            UserCall, //
        }, //
    };

    impl Response for [u64; 4] {}

    /// An input whose first version had two words. The third word must be zero.
    type Words = [u64; 3];

    impl Request for Words {
        const MINIMUM: usize = 16;

        fn check_reserved(&self) -> Result {
            match self {
                [_, _, 0] => Ok(()),
                _ => Err(EINVAL),
            }
        }
    }

    #[test]
    fn attributes_are_laid_out_as_in_c() {
        let attribute = AttrDef::output::<[u64; 4]>(3);
        // SAFETY: The structures have the same size, and any bytes are valid.
        let raw = unsafe { &*ptr::from_ref(&attribute).cast::<bindings::uverbs_attr_def>() };
        assert_eq!(raw.id, 1 << 12 | 3);
        assert_eq!(
            u32::from(raw.attr.type_),
            bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_OUT
        );
        assert_eq!((raw.attr.mandatory(), raw.attr.zero_trailing()), (1, 1));
        assert_eq!((raw.attr.alloc_and_copy(), raw.attr.is_udata()), (0, 0));
        // SAFETY: The attribute is a pointer.
        let length = unsafe { crate::compat::member(&raw.attr.u.ptr) };
        assert_eq!((length.len, length.min_len), (32, 0));

        let attribute = AttrDef::input::<Words>(1).optional();
        // SAFETY: As above.
        let raw = unsafe { &*ptr::from_ref(&attribute).cast::<bindings::uverbs_attr_def>() };
        assert_eq!(
            u32::from(raw.attr.type_),
            bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_IN
        );
        assert_eq!((raw.attr.mandatory(), raw.attr.zero_trailing()), (0, 1));
        // SAFETY: The attribute is a pointer.
        let length = unsafe { crate::compat::member(&raw.attr.u.ptr) };
        assert_eq!((length.len, length.min_len), (24, 16));

        let attribute = AttrDef::object::<Pd<Object>>(0);
        // SAFETY: As above.
        let raw = unsafe { &*ptr::from_ref(&attribute).cast::<bindings::uverbs_attr_def>() };
        assert_eq!(
            u32::from(raw.attr.type_),
            bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_IDR
        );
        assert_eq!((raw.attr.mandatory(), raw.attr.zero_trailing()), (1, 0));
        // SAFETY: The attribute is an object.
        let kind = unsafe { crate::compat::member(&raw.attr.u.obj) };
        assert_eq!(
            (kind.obj_type.into(), kind.access.into()),
            (
                bindings::uverbs_default_objects_UVERBS_OBJECT_PD,
                bindings::uverbs_obj_access_UVERBS_ACCESS_READ
            )
        );
    }

    /// Returns the attributes of a method call.
    fn attributes(
        call: &mut UserCall,
        declared: &'static [&'static AttrDef],
    ) -> AttrBundle<'static, TestDriver> {
        // SAFETY: Tests give a call the attributes that they declare, and use them while it exists.
        unsafe { AttrBundle::new(call.attributes(), declared) }
    }

    const WORDS: AttrDef = AttrDef::input::<Words>(1).optional();
    const DOMAIN: AttrDef = AttrDef::object::<Pd<Object>>(2);
    const ANSWER: AttrDef = AttrDef::output::<[u64; 4]>(3).optional();
    const DECLARED: &[&AttrDef] = &[&WORDS, &DOMAIN, &ANSWER];

    #[test]
    fn inputs_keep_the_rules_of_requests() -> Result {
        let memory = ProcessMemory::new(1)?;
        let mut call = UserCall::new(&memory, 0, ptr::null_mut())?;
        assert_eq!(attributes(&mut call, DECLARED).get::<Words>(&WORDS)?, None);
        let mut writer = memory.user(24).writer();
        for word in 7..10_u64 {
            writer.write(&word)?;
        }
        for (length, expected) in [(16, Ok(Some([7, 8, 0]))), (24, Err(EINVAL))] {
            call.set_attribute(WORDS.id.into(), memory.address(), length);
            let given = attributes(&mut call, DECLARED);
            assert!(given.has(&WORDS) && !given.has(&ANSWER));
            assert_eq!(given.get::<Words>(&WORDS), expected);
        }
        Ok(())
    }

    #[test]
    fn attributes_are_only_what_was_declared() -> Result {
        let memory = ProcessMemory::new(1)?;
        let mut call = UserCall::new(&memory, 0, ptr::null_mut())?;
        call.set_attribute(WORDS.id.into(), memory.address(), 16);
        let given = attributes(&mut call, DECLARED);
        // An input is neither an object nor an output, and an object is not of another kind.
        assert_eq!(given.put(&WORDS, &[0_u64; 4]), Err(EINVAL));
        assert!(given.named::<Pd<Object>>(&WORDS).is_err());
        assert!(given.named::<Cq<Object>>(&DOMAIN).is_err());
        let pretended = AttrDef::object::<Pd<Object>>(1);
        assert!(given.named::<Pd<Object>>(&pretended).is_err());
        assert!(!given.has(&pretended));
        let mandatory = AttrDef::input::<Words>(1);
        assert_eq!(given.get::<Words>(&mandatory), Err(EINVAL));
        // Writing an absent optional attribute does nothing.
        assert_eq!(given.put(&ANSWER, &[0_u64; 4]), Ok(()));
        Ok(())
    }

    #[test]
    fn an_attribute_names_an_object() -> Result {
        crate::testing::driver::with_device(|device, _| {
            // SAFETY: The device is registered.
            let pd = unsafe { bindings::__ib_alloc_pd(device.as_raw(), 0, c"rdma".as_char_ptr()) };
            let pd = from_err_ptr(pd)?;
            let memory = ProcessMemory::new(1)?;
            let mut call = UserCall::new(&memory, 0, ptr::null_mut())?;
            let mut handle = bindings::ib_uobject {
                object: pd.cast(),
                ..Default::default()
            };
            call.set_object(DOMAIN.id.into(), &mut handle);
            let given = attributes(&mut call, DECLARED);
            let named = given.named::<Pd<Object>>(&DOMAIN)?.ok_or(ENOENT)?;
            assert_eq!(named.as_raw(), pd);
            // SAFETY: The domain is no longer in use.
            to_result(unsafe { bindings::ib_dealloc_pd_user(pd, ptr::null_mut()) })
        })
    }

    #[test]
    fn a_queue_pair_that_was_opened_is_that_of_the_driver() -> Result {
        const PAIR: AttrDef = AttrDef::object::<Qp<Object>>(2);

        crate::testing::driver::with_device(|device, _| {
            let mut pair = Pair::new(device)?;
            // The core creates such an object for a process that opens a target by its number.
            let mut opened = bindings::ib_qp {
                real_qp: pair.as_raw(),
                ..Default::default()
            };
            let memory = ProcessMemory::new(1)?;
            let mut call = UserCall::new(&memory, 0, ptr::null_mut())?;
            let mut handle = bindings::ib_uobject {
                object: (&raw mut opened).cast(),
                ..Default::default()
            };
            call.set_object(PAIR.id.into(), &mut handle);
            let given = attributes(&mut call, &[&PAIR]);
            let named = given.named::<Qp<Object>>(&PAIR)?.ok_or(ENOENT)?;
            assert_eq!(named.number(), pair.number());
            pair.end(device)
        })
    }

    #[test]
    fn a_driver_adds_methods_in_a_table_with_an_end() {
        let table = Definitions::<TestDriver>::TABLE;
        // CAST: Small constants.
        let tree = bindings::uapi_definition_kind_UAPI_DEF_CHAIN_OBJ_TREE as u8;
        let end = bindings::uapi_definition_kind_UAPI_DEF_END as u8;
        let kinds = core::array::from_fn::<_, 3, _>(|i| (table[i].kind, table[i].object));
        assert_eq!(
            kinds,
            [
                (tree, Kind::Device.id()),
                (tree, Kind::CompletionQueue.id()),
                (end, 0)
            ]
        );
        // SAFETY: The trees are static, and have one method each.
        let method = unsafe {
            &**(*table[1].tree)
                .methods
                .cast::<*const bindings::uverbs_method_def>()
        };
        assert_eq!((method.id, method.num_attrs), (1 << 12 | 2, 1));
        assert!(method.handler.is_some());
    }
}
