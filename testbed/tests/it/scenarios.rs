//! End-to-end promises of flexfeed, in networks made for the purpose. See `testbed/README.md`.

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use testbed::scenario;
use testbed::tunnel::Peer;

/// Shows the whole report of a failure, line by line as it was written.
fn require<T>(result: anyhow::Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error:#}"),
    }
}

/// Held by the scenarios whose many receivers need both processors.
static PROCESSORS: Mutex<()> = Mutex::new(());

/// Returns the processors, also after a scenario that failed.
fn processors() -> MutexGuard<'static, ()> {
    PROCESSORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says so not through println!, which a passing test keeps to itself.
fn skipped(why: &str) {
    let line = format!("\n*** SKIPPED: {why} ***\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Says how to get the implementation of AMT that is not ours.
fn without_peer() {
    skipped(&format!(
        "there is no other implementation of AMT; {}",
        Peer::remedy()
    ));
}

#[test]
fn a_everything_by_multicast() {
    require(scenario::everything_by_multicast(None));
}

#[test]
fn a_recorded_feed_by_multicast() {
    if !require(scenario::recorded_feed_by_multicast(None)) {
        skipped(
            "the recorded feed ../shared/feeds/lore-all-new.atom is not beside this repository",
        );
    }
}

#[test]
fn a2_any_source_multicast() {
    require(scenario::any_source_multicast(None));
}

#[test]
fn b_a_cut_receiver_falls_back_and_returns() {
    require(scenario::a_cut_receiver_falls_back_and_returns(None));
}

#[test]
fn c_loss_is_repaired() {
    require(scenario::loss_is_repaired(None));
}

#[test]
fn c4_loss_is_rebuilt() {
    require(scenario::loss_is_rebuilt(None));
}

#[test]
fn ht_either_leg_is_lost() {
    require(scenario::either_leg_is_lost(None));
}

#[test]
fn ht2_either_relay_is_lost() {
    require(scenario::either_relay_is_lost(None));
}

#[test]
fn ms_messages_reach_all_who_are_there() {
    require(scenario::messages_reach_all_who_are_there(None));
}

#[test]
fn pb_published_entries_survive_the_source() {
    require(scenario::published_entries_survive_the_source(None));
}

#[test]
fn li_a_live_channel_delivers_nothing_late() {
    require(scenario::a_live_channel_delivers_nothing_late(None));
}

#[test]
fn c2_a_slow_receiver_holds_up_only_itself() {
    require(scenario::a_slow_receiver_holds_up_only_itself(None));
}

#[test]
fn mt_one_narrow_path_decides_the_packet_size() {
    require(scenario::one_narrow_path_decides_the_packet_size(None));
}

#[test]
fn c3_a_flow_and_tcp_share_a_link() {
    require(scenario::a_flow_and_tcp_share_a_link(None));
}

#[test]
fn d_a_blocked_receiver_gets_all_by_unicast() {
    require(scenario::a_blocked_receiver_gets_all_by_unicast(None));
}

#[test]
fn e_crashes_lose_nothing_and_repeat_nothing() {
    require(scenario::crashes_lose_nothing_and_repeat_nothing(None));
}

#[test]
fn f_bad_input_disturbs_nothing() {
    require(scenario::bad_input_disturbs_nothing(None));
}

#[test]
fn fo_a_member_forges_and_nobody_believes_it() {
    require(scenario::a_member_forges_and_nobody_believes_it(None));
}

#[test]
fn fo2_forged_signatures_have_no_effect() {
    let played = scenario::forgeries_of_authenticated_packets_have_no_effect("signature", None);
    require(played);
}

#[test]
fn fo3_forged_tags_have_no_effect() {
    let played = scenario::forgeries_of_authenticated_packets_have_no_effect("auto", None);
    require(played);
}

#[test]
fn g_flapping_backs_off() {
    require(scenario::flapping_backs_off(None));
}

#[test]
fn h_ipv6_only() {
    require(scenario::ipv6_only(None));
}

#[test]
fn h2_ipv6_any_source() {
    require(scenario::ipv6_any_source(None));
}

#[test]
fn i_dual_stack() {
    require(scenario::dual_stack(None));
}

#[test]
fn j_nat_rebinding() {
    require(scenario::nat_rebinding(None));
}

#[test]
fn j2_addresses_change() {
    require(scenario::addresses_change(None));
}

#[test]
fn k_links_fail_in_turn() {
    require(scenario::links_fail_in_turn(None));
}

#[test]
fn l_away_for_thousands_of_updates() {
    require(scenario::away_for_thousands_of_updates(None));
}

#[test]
fn m_a_restored_backup_is_noticed() {
    require(scenario::a_restored_backup_is_noticed(None));
}

#[test]
fn n_an_hour_of_a_busy_archive() {
    require(scenario::an_hour_of_a_busy_archive(None));
}

#[test]
fn q_all_families_and_any_source() {
    require(scenario::all_families_and_any_source(None));
}

#[test]
fn r_tunnels_end_and_are_limited() {
    require(scenario::tunnels_end_and_are_limited(None));
}

#[test]
fn s_forged_and_flooding_requests_get_nothing() {
    require(scenario::forged_and_flooding_requests_get_nothing(None));
}

#[test]
fn t_a_narrow_path() {
    require(scenario::a_narrow_path(None));
}

#[test]
fn v_works_with_others() {
    if !require(scenario::works_with_others(None)) {
        without_peer();
    }
}

#[test]
fn o_three_behind_one_address() {
    require(scenario::three_behind_one_address(None));
}

#[test]
fn p_relays_fail_in_turn() {
    require(scenario::relays_fail_in_turn(None));
}

#[test]
fn u_translations_change() {
    require(scenario::translations_change(None));
}

#[test]
fn v2_by_a_relay_of_others() {
    if !require(scenario::by_a_relay_of_others(None)) {
        without_peer();
    }
}

#[test]
fn x_a_deaf_relay_is_left() {
    require(scenario::a_deaf_relay_is_left(None));
}

#[test]
fn y_a_draining_relay_costs_nothing() {
    require(scenario::a_draining_relay_costs_nothing(None));
}

#[test]
fn p2_relays_fail_to_copies() {
    require(scenario::relays_fail_to_copies(None));
}

#[test]
fn z_the_console_shows_the_real_rungs() {
    if !require(scenario::the_console_shows_the_real_rungs(None)) {
        eprintln!("!!! SKIPPED: no Chromium, or no web/node_modules (./dev web)");
    }
}

#[test]
fn sw_a_thousand_receivers_get_every_update() {
    let _processors = processors();
    require(scenario::a_thousand_receivers_get_every_update(None));
}

#[test]
fn sh_a_killed_shard_is_replaced() {
    require(scenario::a_killed_shard_is_replaced(None));
}

#[test]
fn sw2_receivers_come_and_go() {
    let _processors = processors();
    require(scenario::receivers_come_and_go(None));
}

#[test]
fn sw3_half_of_the_members_lose_multicast() {
    let _processors = processors();
    require(scenario::half_of_the_members_lose_multicast(None));
}

#[test]
fn sw4_an_overloaded_source_blames_no_member() {
    let _processors = processors();
    require(scenario::an_overloaded_source_blames_no_member(None));
}

#[test]
fn w_relay_beside_the_source() {
    require(scenario::relay_beside_the_source(None));
}

/// The programs of an earlier version; `./dev test-upgrade` makes them.
fn previous() -> Option<std::path::PathBuf> {
    let previous = scenario::previous();
    if previous.is_none() {
        skipped("there are no programs of an earlier version; ./dev test-upgrade makes them");
    }
    previous
}

#[test]
fn up1_older_receivers_are_served() {
    if let Some(previous) = previous() {
        require(scenario::older_receivers_are_served(&previous, None));
    }
}

#[test]
fn up2_an_older_source_is_replaced() {
    if let Some(previous) = previous() {
        let kept = scenario::SourceDatabase::Sqlite;
        require(scenario::an_older_source_is_replaced(&previous, kept, None));
    }
}

#[test]
fn up2_an_older_source_is_replaced_on_postgresql() {
    if let Some(previous) = previous() {
        let kept = scenario::SourceDatabase::Postgresql;
        require(scenario::an_older_source_is_replaced(&previous, kept, None));
    }
}
