/** Whether a text has every word that was typed, in any order, whatever the case. */
export function finder(typed: string): (text: string) => boolean {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  return (text) => {
    const low = text.toLowerCase();
    return words.every((word) => low.includes(word));
  };
}
