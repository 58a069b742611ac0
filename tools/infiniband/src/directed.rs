// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Where a packet with a directed route goes next (IBTA volume 1, 14.2.2).

use crate::{
    Lid,
    mad::{MAX_HOPS, PERMISSIVE, Route},
};

/// Where to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Here.
    Here,
    /// Out of that port.
    Port(u8),
    /// To that LID, as the forwarding table has it.
    Lid(Lid),
    /// Nowhere: the route is not valid.
    Discard,
}

/// A node as a directed route sees it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether it forwards.
    pub switch: bool,
    /// Its greatest port.
    pub ports: u8,
}

impl Place {
    fn leave(self, port: u8) -> Step {
        if (1..=self.ports).contains(&port) {
            Step::Port(port)
        } else {
            Step::Discard
        }
    }

    fn forward(self, port: u8) -> Step {
        if self.switch {
            self.leave(port)
        } else {
            Step::Discard
        }
    }

    /// Behind the directed part.
    fn behind(self, lid: Lid) -> Step {
        match lid {
            PERMISSIVE => Step::Here,
            _ if self.switch => Step::Lid(lid),
            _ => Step::Discard,
        }
    }
}

impl Route {
    /// The packet came in by port `input` of `place`; notes that in the route.
    pub fn arrive(&mut self, input: u8, place: Place) -> Step {
        if self.hop_count > MAX_HOPS {
            return Step::Discard;
        }
        let pointer = usize::from(self.hop_pointer);
        let count = usize::from(self.hop_count);
        if self.returning {
            if pointer == count + 1 || pointer > 1 && pointer <= count {
                // The first: from where the directed part ended, by LID.
                if !place.switch {
                    return Step::Discard;
                }
                return self.back_to(place);
            }
            return match pointer {
                1 => self.back_to(place),
                0 => Step::Here,
                _ => Step::Discard,
            };
        }
        if pointer < count {
            // At 0 it came by LID to where the directed part begins.
            if pointer > 0 {
                self.back[pointer] = input;
            }
            self.hop_pointer += 1;
            place.forward(self.initial[pointer + 1])
        } else if pointer == count {
            if count > 0 {
                self.back[pointer] = input;
            }
            self.hop_pointer += 1;
            place.behind(self.destination)
        } else if pointer == count + 1 {
            Step::Here
        } else {
            Step::Discard
        }
    }

    /// The packet begins here: a request, or the response to one that ended here.
    pub fn depart(&mut self, place: Place) -> Step {
        if self.hop_count > MAX_HOPS {
            return Step::Discard;
        }
        match (self.returning, self.hop_pointer) {
            (false, 0) if self.hop_count > 0 => {
                self.hop_pointer = 1;
                place.leave(self.initial[1])
            }
            (false, 0) => {
                self.hop_pointer = 1;
                Step::Here
            }
            (true, pointer) if pointer == self.hop_count + 1 => self.back_to(place),
            _ => Step::Discard,
        }
    }

    /// One hop back.
    fn back_to(&mut self, place: Place) -> Step {
        let pointer = self.hop_pointer - 1;
        self.hop_pointer = pointer;
        if pointer == 0 {
            place.behind(self.source)
        } else {
            place.leave(self.back[usize::from(pointer)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CA: Place = Place {
        switch: false,
        ports: 1,
    };
    const SWITCH: Place = Place {
        switch: true,
        ports: 8,
    };

    /// There and back over two switches: the pointers are those of the standard's figures.
    #[test]
    fn a_route_leads_there_and_back() {
        let mut route = Route::along(&[1, 5, 7]).unwrap();
        assert_eq!((route.depart(CA), route.hop_pointer), (Step::Port(1), 1));
        assert_eq!(
            (route.arrive(2, SWITCH), route.hop_pointer),
            (Step::Port(5), 2)
        );
        assert_eq!(
            (route.arrive(3, SWITCH), route.hop_pointer),
            (Step::Port(7), 3)
        );
        let mut to_switch = route;
        assert_eq!((route.arrive(1, CA), route.hop_pointer), (Step::Here, 4));
        assert_eq!(route.back[1..4], [2, 3, 1]);
        route.returning = true;
        assert_eq!((route.depart(CA), route.hop_pointer), (Step::Port(1), 3));
        assert_eq!(
            (route.arrive(7, SWITCH), route.hop_pointer),
            (Step::Port(3), 2)
        );
        assert_eq!(
            (route.arrive(5, SWITCH), route.hop_pointer),
            (Step::Port(2), 1)
        );
        assert_eq!((route.arrive(1, CA), route.hop_pointer), (Step::Here, 0));
        // A switch can be the end as well.
        assert_eq!(to_switch.arrive(4, SWITCH), Step::Here);
        to_switch.returning = true;
        assert_eq!(to_switch.depart(SWITCH), Step::Port(4));
    }

    #[test]
    fn without_hops_it_stays() {
        let mut route = Route::along(&[]).unwrap();
        assert_eq!(route.depart(CA), Step::Here);
        route.returning = true;
        assert_eq!((route.depart(CA), route.hop_pointer), (Step::Here, 0));
    }

    /// By LID to a switch, from there along a route, and by LID on.
    #[test]
    fn a_part_of_the_way_can_go_by_lid() {
        let mut route = Route {
            source: 4,
            destination: 9,
            ..Route::along(&[6]).unwrap()
        };
        assert_eq!(
            (route.arrive(1, SWITCH), route.hop_pointer),
            (Step::Port(6), 1)
        );
        assert_eq!(
            (route.arrive(2, SWITCH), route.hop_pointer),
            (Step::Lid(9), 2)
        );
        assert_eq!(route.arrive(1, CA), Step::Here);
        route.returning = true;
        assert_eq!(
            (route.arrive(3, SWITCH), route.hop_pointer),
            (Step::Port(2), 1)
        );
        assert_eq!(
            (route.arrive(6, SWITCH), route.hop_pointer),
            (Step::Lid(4), 0)
        );
        assert_eq!(route.arrive(1, CA), Step::Here);
    }

    proptest! {
        /// A hostile route leads to a port that there is, and not for ever.
        #[test]
        fn any_route_ends(
            bytes in proptest::collection::vec(any::<u8>(), 256), count in 0_u8..70, pointer in 0_u8..70, input: u8,
            switch: bool, ports: u8,
        ) {
            let mut route = Route { hop_count: count, hop_pointer: pointer, ..Route::read(&bytes) };
            let place = Place { switch, ports };
            let mut departing = route;
            departing.depart(place);
            let mut hops = 0;
            while let Step::Port(port) = route.arrive(input, place) {
                prop_assert!((1..=ports).contains(&port));
                hops += 1;
                prop_assert!(hops <= 64);
            }
        }
    }
}
