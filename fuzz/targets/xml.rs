#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        // Panics of the feed library are caught where it is called and cost one entry its details: they are no finding. Others still end the process.
        std::panic::set_hook(Box::new(|_| {}));
    },
    |data: &[u8]| bodies::xml(data)
);
