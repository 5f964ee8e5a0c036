/*
 * Part of the static programs: they look names up in /etc/hosts and by the DNS of /etc/resolv.conf, whatever
 * /etc/nsswitch.conf says.
 *
 * A static program has the C library inside, and with it these two ways. For every other word in nsswitch.conf (resolve,
 * myhostname, mdns4_minimal, systemd and so on) it would load a module of the system, which is made for the system's C library.
 * That is another one nearly everywhere but on the machine of the build, and the program would crash at its first look-up.
 */
#include <nss.h>

__attribute__((constructor)) static void flexfeed_names(void)
{
	__nss_configure_lookup("hosts", "files dns");
	/* The default of PostgreSQL's user name asks who runs this. */
	__nss_configure_lookup("passwd", "files");
	__nss_configure_lookup("group", "files");
}
