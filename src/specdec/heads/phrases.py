"""What the templates are filled with: topics, things, people, sentences in other languages."""

from __future__ import annotations


def _lines(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(";") if part.strip())


TOPICS = _lines("""
the water cycle; how bees make honey; the history of the bicycle; coral reefs; volcanoes in Iceland; the invention of
the printing press; a small bakery in a coastal town; solar panels on school roofs; the Amazon rainforest; the causes
of the French Revolution; how vaccines work; the moon landing of 1969; the life of a lighthouse keeper; migration of
monarch butterflies; the building of the Suez Canal; electric buses in big cities; the art of bread baking; the
discovery of penicillin; penguins of Antarctica; a strike at a car factory; the Silk Road; how tides work; the
invention of the telephone; a flood in a river valley; urban gardening; the Great Wall of China; how to train a young
dog; the history of chess; the human heart; a local football club that won the cup; earthquakes in Japan; the life of
Marie Curie; glaciers and climate; the origin of coffee; wind farms at sea; the ancient city of Petra; how memory
works; a library that was saved by its readers; the culture of tea; the Roman aqueducts; owls and how they hunt; the
discovery of gold in California; the development of the steam engine; a new bridge over a harbour; jazz music in New
Orleans; how glass is made; the Sahara desert; the fall of the Berlin Wall; wolves returning to the Alps; the history
of paper; a hospital that uses robots; the planet Mars; a dispute over fishing rights; the invention of the camera;
the Vikings; a shortage of nurses; the making of cheese; how airplanes fly; the Olympic Games in ancient Greece; the
history of pizza; a storm that cut off an island; the digestive system; a museum of old computers; recycling of
plastic; the culture of the Maori; Isaac Newton and gravity; a school without homework; desert plants; the history of
the violin; an election in a small town; hydropower dams; the great fire of London; how whales communicate; a company
that makes wooden toys; the origin of the alphabet; sleep and health; the Panama Canal; the black hole at the centre
of our galaxy; the rise of online shopping; the Inca Empire; a rescue in the mountains; how batteries store energy;
the history of ballet; a village that makes its own electricity; the immune system; the spice trade; the exploration
of the deep sea; a new railway line; mushrooms and fungi; the life of Leonardo da Vinci; a heat wave in southern
Europe; public libraries; the invention of the light bulb; the ozone layer; the history of money; a chess tournament
for children; elephants in Africa; the Black Death; online learning; a theft in an art gallery; how the eye works;
sailing around the world; the cotton industry; the taste of chocolate; an airport that was never opened; the Great
Barrier Reef; a drought and its effect on farmers; the history of football; how computers store numbers; the Ottoman
Empire; an old cinema; beavers and their dams; the discovery of DNA; housing prices in cities; the pyramids of Giza;
artificial intelligence in medicine; a concert in a railway station; the life of Mahatma Gandhi; rice farming in Asia;
the invention of the compass; a dog that found its way home; the northern lights; nuclear power; traditional Japanese
houses; the history of the post; swimming lessons for adults; the Mongol Empire; the taxes on sugar; the giant squid;
how rainbows form; a bookshop cat; the first computers; the Industrial Revolution in England; the monsoon in India;
the violin makers of Cremona; a cyber attack on a city; how skin heals; sharks and people; a bus driver who writes
poems; the Aztec calendar; the speed of light; the history of tattoos; a new law on plastic bags; the life of Charles
Darwin; the canals of Amsterdam; the Gobi desert; space telescopes; a meteorite that fell into a garden; the potato
famine in Ireland; the school lunch programme; vertical farms; kangaroos; the history of medicine; an archive of old
maps; the Mississippi River; the economy of Norway; how soap cleans; camels; a mayor who resigned; the story of a
shipwreck; wheat and bread in history; the inner planets; yoga and stress; the invention of the zip; medieval castles;
the trade in second-hand clothes; frogs and toads; the construction of tunnels; a festival of lanterns; the
Suffragettes; photosynthesis; the restoration of an old painting; a startup that delivers meals; the Himalayas; how
radio works; the Nile; a court case about noise; the history of the umbrella; organic farming; the life of Nelson
Mandela; seals and sea lions; the stock market crash of 1929; a power cut; cycling to work; the Phoenicians; the
hunting of whales; allergies; the invention of writing; the tallest buildings of the world; a river that was cleaned;
crows and their intelligence; the Black Sea; the Hubble telescope; the history of the piano; a lost suitcase; the
ageing of populations; lemon trees; the Renaissance in Florence; the shipping of containers; hot air balloons; a
teacher who started a band; the Maya; how caves form; lightning; the history of the circus; a factory that closes; the
olive harvest; comets; robots in the household; the Cold War; the city of Venice; ants and their colonies; a village
school; the telegraph; the periodic table; kites; the rights of tenants; the life of Frida Kahlo; deserts at night;
the wine regions of France; how the brain learns a language; the Eiffel Tower; a marathon in the rain; moss; the
invention of the wheel; the history of slavery; an island without cars; the heart of a computer; fireflies; the fur
trade in Canada; a bank robbery; gravity on other planets; the history of photography; the salt mines; insects as
food; the Danube; the making of steel; a reunion of old friends; bamboo; the Great Depression; ferries; the nitrogen
cycle; a detective who retires; the life of Ada Lovelace; a farmers' market; the history of glasses; snow leopards;
ports and their cranes; the Bronze Age; air pollution; a choir of pensioners; horses in war; the first railway;
electric guitars; maps of the world; a bear in the suburbs; the spread of Buddhism; the sun and its energy; the
history of toys; the crisis of a newspaper; dinosaurs; bridges; the culture of cafes in Vienna; smart phones in class;
tea plantations; hospitals in the Middle Ages; a gardener and a fox; the price of oil; polar bears; the moons of
Jupiter; a trade agreement between two countries; the history of clocks; herbs in the kitchen; the Gold Coast; a night
train; the sense of smell; weather forecasts; an orphan elephant; the Marshall Plan; waterfalls; archaeology under
water; the invention of plastic; a queen who loved science; the lungs; skiing without snow; honey badgers; a fire in a
warehouse; pirates of the Caribbean; mountains and their weather; a debate about school uniforms
""")

THINGS = _lines("""
the telescope; the steam engine; the sewing machine; the elevator; the microscope; the thermometer; the airplane; the
radio; dynamite; the typewriter; the barometer; the parachute; the vacuum cleaner; the traffic light; the laser; the
transistor; the stethoscope; the refrigerator; the ballpoint pen; the microwave oven; the helicopter; the printing
press; the photocopier; the pacemaker; the lawn mower; the escalator; the safety razor; the video recorder
""")

EVENTS = _lines("""
the first world war; the american civil war; the battle of hastings; the french revolution; the moon landing; the fall
of constantinople; the great depression; the titanic disaster; the russian revolution; the korean war; the boston tea
party; the spanish armada; the black death; the wall street crash; the chernobyl accident; the suez crisis; the
vietnam war; the gunpowder plot; the gold rush in california; the great fire of rome; the partition of india; the
battle of waterloo
""")

COUNTRIES = _lines("""
Peru; Kenya; Norway; Vietnam; Portugal; Canada; Morocco; Thailand; Argentina; Hungary; Iceland; Nepal; Egypt; Finland;
Cuba; Chile; Poland; Ghana; Mongolia; Greece; New Zealand; Ireland; Turkey; Bolivia; Sweden; Ethiopia; Indonesia;
Austria; Mexico; South Korea; Denmark; Iran; Colombia; Romania; Jordan; Belgium; Uruguay; Malaysia
""")

CONCEPTS = _lines("""
inflation; photosynthesis; supply and demand; natural selection; gravity; recursion; a prime number; democracy;
entropy; machine learning; the greenhouse effect; a metaphor; plate tectonics; compound interest; electricity; an
ecosystem; a hash table; the placebo effect; opportunity cost; a vaccine; friction; the water table; osmosis; a black
hole; a balanced diet; probability; a constitution; the scientific method; binary search; an eclipse; a sonnet;
object-oriented programming; a budget deficit; evolution; magnetism; a cell membrane; a logarithm; supply chains;
confirmation bias; renewable energy; the speed of sound; globalization; a simile; cloud computing; peer pressure; the
food chain; Newton's third law; an algorithm; a database index; the nervous system
""")

ACTIVITIES = _lines("""
learn to cook; run a half marathon; save money; study for an exam; write a cover letter; grow tomatoes on a balcony;
organise a birthday party; learn a new language; sleep better; prepare for a job interview; start a podcast; clean a
bicycle; plan a trip to the mountains; read more books; make new friends in a new city; train a puppy; reduce waste at
home; give a speech; paint a room; write a short story; set up a home office; bake bread; learn to swim; choose a
laptop; lead a meeting; deal with stress; start a small business; teach a child to ride a bike; take better
photographs; pack a suitcase; remember names; meditate; repair a dripping tap; make a family budget; play the guitar
""")

ROLES = _lines("""
a travel guide; a history teacher; a chef; a doctor who explains things simply; a pirate; an old librarian; a coach; a
detective; a scientist on a research ship; a gardener; a medieval knight; a software engineer; a news reporter; an
astronaut; a philosopher; a shop assistant; a weather presenter; a grandmother who tells stories; a lawyer; a robot
that has just been switched on
""")

LANGUAGES = _lines("German; German; French; Spanish; Italian; Portuguese; Dutch")

NAMES = _lines("""
Anna; Ben; Carla; David; Elena; Farid; Grace; Hiro; Ines; Jack; Karim; Laura; Mateo; Nina; Oscar; Priya; Quinn; Rosa;
Samuel; Tara; Umar; Vera; Walter; Xenia; Yusuf; Zoe; Alice; Boris; Chloe; Dmitri; Emma; Felix; Gina; Hassan; Ivy;
Jonas; Kate; Liam; Mia; Noah; Olga; Paul; Ruth; Sven; Tim; Uma; Victor; Wendy
""")

ITEMS = _lines("""
apples; books; pencils; marbles; stickers; cookies; tickets; bottles; chairs; eggs; flowers; shirts; coins; cards;
balloons; cups; oranges; toy cars; bricks; sandwiches; lamps; stamps; candles; hats; muffins; plants; notebooks
""")

PLACES_DE = _lines("""
Berlin; Hamburg; Wien; Zürich; München; Köln; Leipzig; Dresden; Bremen; Hannover; Stuttgart; Paris; London; Rom;
Madrid; Brüssel; Warschau; Prag; Peking; Tokio; Washington; Moskau; Kairo; Athen; Oslo; Lissabon; Budapest; Istanbul
""")

NOUNS_DE = _lines("""
die Regierung; der Bürgermeister; die Polizei; das Unternehmen; der Minister; die Gewerkschaft; die Stadtverwaltung;
der Verein; die Universität; das Krankenhaus; der Präsident; die Schule; der Trainer; die Bank; das Gericht; die
Opposition; der Hersteller; die Feuerwehr; das Museum; der Fahrer; die Ärztin; der Richter; die Forscherin; der
Verband
""")

OBJECTS_DE = _lines("""
den neuen Vertrag; die geplante Reform; das alte Rathaus; den Bau der Brücke; die steigenden Preise; das Gesetz; den
Vorschlag der Kommission; die Ergebnisse der Studie; den Umbau des Bahnhofs; die Zahl der Unfälle; das Angebot; die
Kritik der Anwohner; den Haushalt für das nächste Jahr; die Eröffnung der Ausstellung; den Streik; das Projekt; die
Entscheidung des Gerichts; die Lage auf dem Arbeitsmarkt; den Verkauf der Fabrik; die Hilfe für Familien
""")

SENTENCES_DE = _lines("""
In {place} hat {noun} am Montag {object} vorgestellt.; Nach Angaben der Behörden wurden {number} Menschen verletzt,
als ein Bus in {place} von der Straße abkam.; {Noun} will {object} bis zum Ende des Jahres prüfen , sagte ein
Sprecher.; Warum {noun} {object} ablehnt, ist bisher nicht bekannt.; Im vergangenen Jahr kamen rund {number}000
Besucher nach {place}, so viele wie nie zuvor.; Der Preis für Strom ist seit Januar um {number} Prozent gestiegen.;
„Wir haben lange auf diesen Tag gewartet“, sagte der Leiter des Museums in {place}.; Obwohl es seit Tagen regnet,
findet das Fest in {place} wie geplant statt.; {Noun} verteidigt {object} gegen Kritik aus {place}.; Mehr als {number}
Prozent der Befragten lehnen es ab, dass {noun} {object} unterstützt.; Die Kinder spielten im Garten, während ihre
Großmutter das Essen kochte.; Ich habe gestern ein Buch gekauft, das von einer Reise nach {place} erzählt.; Können Sie
mir bitte sagen, wann der nächste Zug nach {place} fährt?; Die Mannschaft aus {place} gewann das Spiel mit drei zu
zwei Toren.; Wenn das Wetter gut bleibt, fahren wir am Wochenende nach {place}.; Wissenschaftler aus {place} haben
herausgefunden, dass Pflanzen auf Geräusche reagieren.; {Noun} sucht seit {number} Wochen nach einer Lösung für
{object}.; Seine Eltern zogen vor {number} Jahren nach {place}, um dort zu arbeiten.; Ein {number} Jahre alter Mann
wurde am Dienstag in {place} festgenommen.; Das Konzert in {place} war so gut besucht, dass viele Menschen draußen
bleiben mussten.; Die Wohnungen in {place} sind teuer geworden , doch {noun} verspricht schnelle Hilfe.; Trotz der
Krise stellt das Unternehmen {number} neue Mitarbeiter ein.; Sie arbeitet als Ärztin in einem kleinen Krankenhaus in
der Nähe von {place}.; Am Abend trafen sich die Minister in {place}, um über {object} zu sprechen.; {Noun} hat
{object} bereits im März angekündigt, aber bisher ist nichts geschehen.; Der Fluss trat über die Ufer und
überschwemmte {number} Häuser.; Es ist das erste Mal seit {number} Jahren, dass in {place} eine Frau das Amt
übernimmt.; Die Ermittler gehen davon aus , dass der Täter aus {place} stammt.; Für viele Menschen ist das Fahrrad
inzwischen wichtiger als das Auto.; Zum Frühstück gibt es frisches Brot, Käse und Obst aus der Region.; Das Schiff
verließ den Hafen von {place} mit {number} Passagieren an Bord.; Die Experten warnen davor, {object} zu
unterschätzen.; In den Bergen liegt noch immer Schnee, deshalb bleiben einige Wege gesperrt.; {Noun} erklärte in
{place}, man werde {object} nicht hinnehmen.; Der Film erzählt die Geschichte eines Jungen, der seinen Hund verliert.;
Wer weniger verdient, muss künftig auch weniger bezahlen.
""")

SENTENCES_OTHER = _lines("""
French|Le maire a annoncé hier la fermeture de la vieille gare.; French|Les enfants jouent dans le jardin pendant que
leur mère prépare le repas.; French|Selon la police, l'accident a fait {number} blessés.; French|Je voudrais réserver
une table pour {small} personnes, s'il vous plaît.; French|Le prix du pain a augmenté de {number} pour cent en un an.;
French|Elle travaille depuis {small} ans dans une petite librairie près de la mer.; French|Malgré la pluie, des
milliers de personnes ont assisté au concert.; French|Le gouvernement veut réduire la pollution dans les grandes
villes.; Spanish|El tren de Madrid llegará con {number} minutos de retraso.; Spanish|Los vecinos protestan contra la
construcción de un nuevo hotel.; Spanish|Mi abuela vive en un pueblo pequeño cerca de las montañas.; Spanish|El
presidente viajará la próxima semana a México para hablar de comercio.; Spanish|Hace {small} años que no llueve tanto
en esta región.; Spanish|El equipo ganó el partido en el último minuto.; Spanish|Quiero comprar una camisa azul y dos
pares de zapatos.; Italian|Il museo resterà chiuso fino a domenica per lavori.; Italian|Mio fratello studia medicina a
Bologna da {small} anni.; Italian|Il governo ha approvato una nuova legge sulla scuola.; Italian|Ieri abbiamo mangiato
una pizza molto buona vicino al porto.; Portuguese|O hospital da cidade precisa de mais {number} enfermeiros.;
Portuguese|A praia fica a dez minutos da nossa casa.; Dutch|De burgemeester opent morgen de nieuwe bibliotheek.;
Dutch|Door de storm rijden er vandaag geen treinen naar het noorden.
""")

MATHS = (
    "{a} has {x} {item}. {b} gives {a} {y} more, and then {a} gives away {small}. How many {item} does {a} have now?",
    "A shop sells {item} for ${small} each. If {a} buys {x} of them and pays with a ${big} bill, "
    "how much change is due?",
    "{a} reads {x} pages a day. How many pages does {a} read in {small} weeks?",
    "A train travels {x} miles in {small} hours. At the same speed, how far does it travel in {y} hours?",
    "{a} earns ${x} an hour and works {y} hours a week. How much does {a} earn in {small} weeks?",
    "There are {big} students in a school. {p}% of them play a sport. How many students do not play a sport?",
    "A box holds {x} {item}. {a} has {small} full boxes and {y} loose {item}. How many {item} are there in total?",
    "{a} is {small} years older than {b}. Together they are {big} years old. How old is {a}?",
    "The length of a garden is {x} meters and its width is {y} meters. How much fence is needed to go around it "
    "{small} times?",
    "{a} bought {small} shirts for ${x} each and {small2} pairs of socks for ${y} each. "
    "A discount of {p}% was taken off the total. How much did {a} pay?",
    "{a} and {b} share ${big} in the ratio {small}:{small2}. How much does {b} get?",
    "A tank holds {big} liters. It is filled at {x} liters a minute, but it leaks {small} liters a minute. "
    "How long does it take to fill?",
    "{a} saves ${x} in the first month and ${small} more in each month than in the one before. "
    "How much has {a} saved after {small2} months?",
    "If {small} workers need {y} days to build a wall, how many days do {small2} workers need?",
    "A recipe for {small} people needs {x} grams of flour. How much flour is needed for {y} people?",
    "{a} ran {x} km on Monday, twice as far on Tuesday, and half of Monday's distance on Wednesday. "
    "How far did {a} run in all?",
    "What is {x} + {y} * {small}?",
    "Solve for x: {small}x + {x} = {big}.",
    "What is the probability of drawing a red ball from a bag with {x} red, {y} blue and {small} green balls?",
    "A car uses {small} liters of fuel per 100 km. Fuel costs ${small2} a liter. What does a trip of {big} km cost?",
    "The average of {x}, {y} and a third number is {big}. What is the third number?",
    "{a} has three times as many {item} as {b}. If {b} has {x}, how many do they have together, "
    "and how many would each have if they shared equally?",
    "A farmer has {big} {item} and packs them in bags of {small}. How many bags does he fill, and how many are left?",
    "{a} sleeps {small} hours a night. What fraction of the week is {a} asleep?",
    "The price of a jacket is ${big}. It rises by {p}% and then falls by {p}%. What is the price now?",
    "{a} drinks {small} cups of coffee a day. Each cup costs ${small2}. How much does {a} spend in a year?",
)

_CODE = """
def total(values):
    result = 0
    for value in values:
        result = result + value
    return result
----
def is_even(n):
    if n % 2 == 0:
        return True
    else:
        return False
----
def read_lines(path):
    f = open(path)
    lines = f.readlines()
    f.close()
    return lines
----
class Account:
    def __init__(self, owner, balance):
        self.owner = owner
        self.balance = balance

    def withdraw(self, amount):
        self.balance = self.balance - amount
----
def find_max(numbers):
    best = numbers[0]
    for n in numbers:
        if n > best:
            best = n
    return best
----
function greet(name) {
  var message = "Hello, " + name + "!";
  console.log(message);
}
----
def count_words(text):
    counts = {}
    for word in text.split():
        if word in counts:
            counts[word] += 1
        else:
            counts[word] = 1
    return counts
----
for i in range(1, 101):
    if i % 15 == 0:
        print("FizzBuzz")
    elif i % 5 == 0:
        print("Buzz")
    elif i % 3 == 0:
        print("Fizz")
    else:
        print(i)
----
def fibonacci(n):
    if n < 2:
        return n
    return fibonacci(n - 1) + fibonacci(n - 2)
----
int average(int a[], int n) {
  int sum = 0;
  for (int i = 0; i < n; i++)
    sum += a[i];
  return sum / n;
}
----
def reverse(s):
    out = ""
    for c in s:
        out = c + out
    return out
----
SELECT name, salary FROM employees WHERE department = "sales" ORDER BY salary DESC;
----
def binary_search(items, target):
    low, high = 0, len(items)
    while low < high:
        mid = (low + high) // 2
        if items[mid] < target:
            low = mid + 1
        else:
            high = mid
    return low
----
import random

def roll(n):
    return [random.randint(1, 6) for _ in range(n)]
"""
CODE = tuple(part.strip("\n") for part in _CODE.split("\n----\n"))

PROGRAMS = _lines("""
counts the vowels in a string; checks whether a word is a palindrome; sorts a list of numbers without using sort;
reads a CSV file and prints the average of a column; finds the longest word in a text; converts Celsius to Fahrenheit;
removes duplicates from a list; computes the factorial of a number; merges two sorted lists; prints a multiplication
table; validates an email address; simulates rolling two dice; finds all prime numbers below n; reverses a linked
list; parses a date; counts how often each letter appears; flattens a nested list; computes the greatest common
divisor; draws a triangle of stars; searches for a word in all files of a folder; keeps a to-do list; checks if
brackets are balanced
""")
