#[test]
fn replaced_flow_acks_in_flight() {
    let mut lab = Lab::new(1, 3);
    for i in 0..3 { lab.connect(i); }
    lab.run(SECOND);
    for _ in 0..40 { lab.publish(1100); lab.run(5 * MS); }
    let config = flexicast::flow::FlowConfig { flow: flexicast::FlowId([9; 8]), ..lab.config.clone() };
    lab.source.replace_flow(config, lab.now).unwrap();
    lab.publish(100);
    lab.run(SECOND);
    println!("replaced: ok");
}
#[test]
fn forged_pn_closes() {
    use flexicast::protect::*;
    let mut lab = Lab::new(1, 1);
    lab.connect(0);
    lab.run(SECOND);
    let key = PacketKey::new(lab.config.algorithm, &lab.config.secret).unwrap();
    let mut p = vec![0; HEADER_LEN]; p.push(1); p.resize(HEADER_LEN + 1 + TAG_LEN, 0);
    key.seal(lab.config.flow, 1 << 20, false, &mut p, HEADER_LEN + 1).unwrap();
    println!("{:?}", lab.nodes[0].core.on_flow_datagram(Rung::Multicast, &mut p, lab.now));
    lab.run(SECOND);
}
