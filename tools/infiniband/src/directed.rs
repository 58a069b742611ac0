// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The next hop of a packet with a directed route (IBTA volume 1, 14.2.2).

use crate::{
    Lid,
    mad::{MAX_HOPS, PERMISSIVE, Route},
};

/// The next hop of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The packet ends at this node.
    Here,
    /// The packet leaves by this port.
    Port(u8),
    /// The packet goes to this LID by the forwarding tables.
    Lid(Lid),
    /// The route is not valid.
    Discard,
}

/// The properties of a node that directed routes depend on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether the node is a switch, which forwards packets.
    pub switch: bool,
    /// The highest port number.
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

    /// Returns the step after the directed part of the route.
    fn behind(self, lid: Lid) -> Step {
        match lid {
            PERMISSIVE => Step::Here,
            _ if self.switch => Step::Lid(lid),
            _ => Step::Discard,
        }
    }
}

impl Route {
    /// Updates the route for a packet that arrived by port `input` of `place`, and returns the next step.
    pub fn arrive(&mut self, input: u8, place: Place) -> Step {
        if self.hop_count > MAX_HOPS {
            return Step::Discard;
        }
        let pointer = usize::from(self.hop_pointer);
        let count = usize::from(self.hop_count);
        if self.returning {
            if pointer == count + 1 || pointer > 1 && pointer <= count {
                // The first step back comes by LID from the node where the directed part ended.
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
            // A pointer of 0 means that the packet came by LID to the start of the directed part.
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

    /// Updates the route for a packet that this node sends, which is a request or a response, and returns the first
    /// step.
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

    /// Takes the route one hop back.
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

    /// A route leads over two switches and back, and the pointers are those in the figures of the standard.
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
        // A route can also end at a switch.
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

    /// A packet goes by LID to a switch, from there along a route, and on by LID.
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
        /// Any hostile route leads to existing ports only, and ends.
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
