//! Rules of the controller as a whole.
